"""In-band telemetry: every role, what stands in its way, and reports."""

from __future__ import annotations

import struct

from scapy.all import ICMP, IP, TCP, UDP, Dot1AD, Dot1Q, IPOption_NOP, IPv6, IPv6ExtHdrDestOpt, Packet, Raw, raw

from dinnet.dataplane.entity import CloneSession, DefaultEntry, Entity, Group, Ternary, mac
from dinnet.dataplane.tables import (
    Flood,
    ForwardDrop,
    ForwardL2,
    IntMd,
    IntNode,
    IntSource,
    IntXd,
    NoInt,
    SetCollector,
    SetNode,
)

from .book import B, Book, ether, exactly, send, station
from .marks import select

INT_PORT, SESSION = 4793, 1
NODE_ID, PORTS, QUEUE, INTERFACES, UTILIZATION, BUFFER, COMPLEMENT = 0x8000, 0x4000, 0x1000, 0x200, 0x100, 0x80, 1
ASKED, WORDS = NODE_ID | PORTS | INTERFACES, 4
HEADERS = 24
COLLECTOR = (mac("02:00:00:00:00:0e"), mac("02:00:00:00:00:0f"), 0x0A0C0001, 0x0A0C00FE, 40000, 32766)
PAYLOAD = Raw(bytes(range(40)))
OTHER_HOP = bytes.fromhex("00000007 00010002 00000001 00000002")


def node(*, is_sink: bool = False, mtu: int = 1500, port: int = 2) -> Entity:
    return IntNode(port=port, action=SetNode(0xA0000001, int(is_sink), mtu))


def watch(action: IntMd | IntXd | NoInt, priority: int = 1, **match: Ternary) -> Entity:
    return IntSource(priority=priority, action=action, **match)


def reports() -> list[Entity]:
    return [CloneSession(SESSION, (6,)), DefaultEntry("int_collector", SetCollector(*COLLECTOR))]


def header(
    remaining: int = 5, *, asked: int = ASKED, words: int = WORDS, flags: int = 0, version: int = 2, domain: int = 0,
    domain_instructions: int = 0,
) -> bytes:  # fmt: skip
    first = version << 28 | flags << 25 | words << 8 | remaining
    return struct.pack(">IHHHH", first, asked, domain, domain_instructions, 0)


def stack(head: bytes, *hops: bytes, proto: int = 6, kind: int = 0x18, words: int | None = None) -> bytes:
    body = head + b"".join(hops)
    return bytes([kind, len(body) // 4 if words is None else words, 0, proto]) + body


def carrying(ip: Packet, int_bytes: bytes, transport: Packet, checksum: int | None = 0) -> Packet:
    """A packet with INT in it; `checksum` None: the right one."""
    return ether(ip, UDP(sport=50001, dport=INT_PORT, chksum=checksum), Raw(int_bytes + raw(transport)))


def telemetry() -> Book:
    book = Book(12, "in-band telemetry: source, transit, sink, reports")
    tcp = TCP(sport=1000, dport=80, chksum=0x1234) / PAYLOAD
    udp = UDP(sport=1000, dport=80, chksum=0x1234) / PAYLOAD

    def v4(**more: object) -> IP:
        return IP(src=book.v4[0], dst=book.v4[1], **more)

    def v6(**more: object) -> IPv6:
        return IPv6(src=book.v6[0], dst=book.v6[1], **more)

    ends = {"IPv4": v4, "IPv6": v6}
    transports = {"TCP": (tcp, 6), "UDP": (udp, 17)}
    source = watch(IntMd(ASKED, 8))
    for version, ip in ends.items():
        for name, (transport, proto) in transports.items():
            what = f"{version}, {name}"
            book.add(f"source: {what}", [station(), node(), source], send(ether(ip(), transport)))
            int_bytes = stack(header(), OTHER_HOP, proto=proto)
            book.add(f"transit: {what}", [station(), node()], send(carrying(ip(), int_bytes, transport)))
            book.add(
                f"sink: {what}", [station(), node(is_sink=True), *reports()], send(carrying(ip(), int_bytes, transport))
            )
            book.add(
                f"export: {what}", [station(), node(), watch(IntXd(ASKED)), *reports()], send(ether(ip(), transport))
            )
            book.add(
                f"source and sink in one: {what}",
                [station(), node(is_sink=True), source, *reports()],
                send(ether(ip(), transport)),
            )
    # Source.
    for asked in (0, NODE_ID, PORTS, INTERFACES, UTILIZATION, BUFFER, COMPLEMENT, ASKED | 0x7E, 0x8381):
        book.add(
            f"source: instructions {asked:#06x}", [station(), node(), watch(IntMd(asked, 8))], send(ether(v4(), tcp))
        )
    for hops in (0, 1, 255):
        book.add(f"source: {hops} hops", [station(), node(), watch(IntMd(ASKED, hops))], send(ether(v4(), tcp)))
    for version, ip in ends.items():
        size = len(raw(ip() / tcp))
        for name, mtu in {
            "exactly the MTU": size + HEADERS + 4 * WORDS,
            "one byte above the MTU": size + HEADERS + 4 * WORDS - 1,
            "headers of exactly the MTU": size + HEADERS,
            "headers one byte above the MTU": size + HEADERS - 1,
        }.items():
            book.add(f"source: {version}, {name}", [station(), node(mtu=mtu), source], send(ether(ip(), tcp)))
    book.add("source: no role on the port", [station(), source], send(ether(v4(), tcp)))
    book.add("source: a role on another port", [station(), node(port=3), source], send(ether(v4(), tcp)))
    excluded = watch(NoInt(), 2, dport=exactly(80, 16))
    book.add("source: excluded by an entry", [station(), node(), source, excluded], send(ether(v4(), tcp)))
    for name, options in {"one option": [IPOption_NOP()] * 4, "all options": [IPOption_NOP()] * 40}.items():
        book.add(f"source: {name}", [station(), node(), source], send(ether(v4(options=options), tcp)))
        book.add(
            f"sink: {name}",
            [station(), node(is_sink=True), *reports()],
            send(carrying(v4(options=options), stack(header(), OTHER_HOP), tcp)),
        )
    for name, tags, vlan in (("VLAN", [Dot1Q(vlan=5)], 5), ("QinQ", [Dot1AD(vlan=5), Dot1Q(vlan=6)], 5)):
        book.add(f"source: {name}", [station(vlan=vlan), node(), source], send(ether(*tags, v4(), tcp)))
        carried = raw(carrying(v4(), stack(header(), OTHER_HOP), tcp))
        frame = raw(ether(*tags))[:12] + raw(ether(*tags, v4()))[12 : 14 + 4 * len(tags)] + carried[14:]
        for role, entities in (("transit", [node()]), ("sink", [node(is_sink=True), *reports()])):
            book.add(f"{role}: {name}", [station(vlan=vlan), *entities], send(frame, summary=f"{name} with INT"))
        book.add(
            f"export: {name}",
            [station(vlan=vlan), node(), watch(IntXd(ASKED)), *reports()],
            send(ether(*tags, v4(), tcp)),
        )
    for name, packet in {
        "a first fragment": ether(v4(flags="MF"), tcp),
        "a later fragment": ether(v4(frag=8), PAYLOAD),
        "ICMP": ether(v4(), ICMP(), PAYLOAD),
        "an extension header": ether(v6(), IPv6ExtHdrDestOpt(), tcp),
    }.items():
        book.add(f"source: {name}", [station(), node(), source], send(packet))
        book.add(f"export: {name}", [station(), node(), watch(IntXd(ASKED)), *reports()], send(packet))
    # Transit.
    for remaining in (255, 1, 0):
        book.add(
            f"transit: {remaining} hops left",
            [station(), node()],
            send(carrying(v4(), stack(header(remaining), OTHER_HOP), tcp)),
        )
    size = len(raw(v4() / UDP() / Raw(stack(header(), OTHER_HOP)) / tcp))
    for name, mtu in {"exactly the MTU": size + 4 * WORDS, "one byte above the MTU": size + 4 * WORDS - 1}.items():
        book.add(
            f"transit: {name}",
            [station(), node(mtu=mtu)],
            send(carrying(v4(), stack(header(), OTHER_HOP), tcp)),
        )
    for hops in (62, 63):  # 3 + 63 * 4 = 255 words
        long = stack(header(), *[OTHER_HOP] * hops)
        book.add(f"transit: {hops} hops before", [station(), node(mtu=9000)], send(carrying(v4(), long, tcp)))
    long = stack(header(), *[OTHER_HOP] * 63)
    book.add("sink: the longest stack", [station(), node(is_sink=True), *reports()], send(carrying(v4(), long, tcp)))
    foreign = {
        "version 1": header(version=1),
        "version 3": header(version=3),
        "a reserved instruction": header(asked=ASKED | 2),
        "too many words a hop": header(words=WORDS + 1),
        "too few words a hop": header(words=WORDS - 1),
        "another domain": header(domain=1),
        "an instruction of domain 0": header(domain_instructions=0x8000),
        "no instructions": header(asked=0, words=0),
        "E set before": header(flags=2),
        "M set before": header(flags=1),
        "D set": header(flags=4),
    }
    for name, head in foreign.items():
        book.add(f"transit: {name}", [station(), node()], send(carrying(v4(), stack(head, OTHER_HOP), tcp)))
        book.add(
            f"sink: {name}",
            [station(), node(is_sink=True), *reports()],
            send(carrying(v4(), stack(head, OTHER_HOP), tcp)),
        )
    reserved = bytearray(stack(header(), OTHER_HOP))
    reserved[0] |= 3
    reserved[2] = 0xAB
    reserved[4] |= 1
    reserved[5] = 0xCD
    reserved[6] |= 0xE0
    book.add("transit: reserved bits", [station(), node()], send(carrying(v4(), bytes(reserved), tcp)))
    for remaining in (5, 0):
        book.add(
            f"transit: a UDP checksum, {remaining} hops left",
            [station(), node()],
            send(carrying(v4(), stack(header(remaining), OTHER_HOP), tcp, None)),
        )
        book.add(
            f"transit: a UDP checksum over IPv6, {remaining} hops left",
            [station(), node()],
            send(carrying(v6(), stack(header(remaining), OTHER_HOP), tcp, None)),
        )
    book.add("transit: no role on the port", [station()], send(carrying(v4(), stack(header(), OTHER_HOP), tcp)))
    # What is no INT-MD in front of TCP or UDP.
    for name, int_bytes, transport in (
        ("destination type", stack(header(), OTHER_HOP, kind=0x28), tcp),
        ("MX", stack(header(), OTHER_HOP, kind=0x38), tcp),
        ("NPT 1", stack(header(), OTHER_HOP, kind=0x14), tcp),
        ("two words", stack(header(), OTHER_HOP, words=2), tcp),
        ("more words than the packet has", stack(header(), OTHER_HOP, words=255), tcp),
        ("ICMP behind it", stack(header(), OTHER_HOP, proto=1), tcp),
        ("TCP that is too short", stack(header(), OTHER_HOP), Raw(bytes(19))),
        ("TCP whose header is too short", stack(header(), OTHER_HOP), TCP(dataofs=4)),
        ("TCP whose header is too long", stack(header(), OTHER_HOP), TCP(dataofs=6)),
        ("UDP that is too short", stack(header(), OTHER_HOP, proto=17), Raw(bytes(7))),
        ("a user's own packet", b"this is no INT at all", Raw(b"")),
        ("nothing", b"", Raw(b"")),
    ):
        entities = [station(), node(is_sink=True), *reports(), select(2, 2, dport=exactly(INT_PORT, 16))]
        book.add(f"opaque: {name}", entities, send(carrying(v4(), int_bytes, transport)))
    fragment = carrying(v4(flags="MF"), stack(header(), OTHER_HOP), tcp)
    book.add("opaque: a first fragment", [station(), node(is_sink=True), *reports()], send(fragment))
    cut = raw(carrying(v4(), stack(header(), OTHER_HOP), TCP()))[:-1]
    book.add("malformed: the frame ends in TCP", [station(), node(is_sink=True)], send(cut, summary="cut off"))
    # Marks and the way see the original packet, and reports show it as it came.
    book.add(
        "sink: marked by the original ports",
        [station(), node(is_sink=True), *reports(), select(9, 2, dport=exactly(80, 16))],
        send(carrying(v4(tos=1), stack(header(asked=ASKED | QUEUE, words=5), OTHER_HOP + bytes(4)), tcp)),
    )
    flooded = [Group(1, (1, 2, 3)), ForwardL2(vlan=0, dst=mac(B), action=Flood(1))]
    book.add("flooded", flooded, send(carrying(v4(), stack(header(), OTHER_HOP), tcp)))
    book.add("flooded by a node", [*flooded, node(port=1)], send(carrying(v4(), stack(header(), OTHER_HOP), tcp)))
    dropped = [ForwardL2(vlan=0, dst=mac(B), action=ForwardDrop()), node(port=1), *reports()]
    book.add("dropped: watched", [*dropped, watch(IntXd(ASKED))], send(ether(v4(), tcp)))
    book.add("dropped: with INT", dropped, send(carrying(v4(), stack(header(), OTHER_HOP), tcp)))
    book.add("dropped: not watched", dropped, send(ether(v4(), tcp)))
    return book
