"""Stacks of headers that must pass unharmed, and packets that contradict themselves."""

from __future__ import annotations

import struct

from scapy.all import (
    AH,
    GRE,
    ICMP,
    IP,
    SCTP,
    TCP,
    UDP,
    Dot1AD,
    Dot1Q,
    ICMPv6EchoRequest,
    IPOption_NOP,
    IPOption_RR,
    IPOption_Timestamp,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    IPv6ExtHdrSegmentRouting,
    Packet,
    PadN,
    Raw,
    raw,
)

from dinnet.dataplane.entity import Entity, Lpm, mac
from dinnet.dataplane.tables import ForwardV4, ForwardV6, Route

from .book import ROUTER, B, Book, ether, exactly, send, station
from .marks import mark, select

PAYLOAD = Raw(bytes(range(32)))


def passing() -> Book:
    book = Book(7, "header stacks: what is looked behind, and that nothing else changes")

    def both(packet: Packet, name: str, proto: int = 17, *, v6: bool = True, vlan: int = 0, ports: bool = True) -> None:
        """Once with a micro-flow of the inner ports, once with a route and a slice for all."""
        ends = book.v6 if v6 else book.v4
        sport, dport = (1000, 2000) if ports else (0, 0)
        entries: list[Entity] = [station(vlan=vlan), mark(*ends, proto, sport, dport, vlan=vlan), select(2, 2)]
        # The addresses of the next vector are other ones: build the packet anew for it.
        book.add(f"{name}: a micro-flow", entries, send(packet))
        route = Route(3, mac(ROUTER), mac(B))
        table: Entity = ForwardV6(dst=Lpm(0, 0), action=route) if v6 else ForwardV4(dst=Lpm(0, 0), action=route)
        book.add(f"{name}: routed", [table, select(7, 1, proto=exactly(proto, 8))], send(packet))

    def v4(*layers: Packet, **more: object) -> Packet:
        return ether(IP(src=book.v4[0], dst=book.v4[1], **more), *layers)

    def v6(*layers: Packet, **more: object) -> Packet:
        return ether(IPv6(src=book.v6[0], dst=book.v6[1], **more), *layers)

    udp = UDP(sport=1000, dport=2000) / PAYLOAD
    tcp = TCP(sport=1000, dport=2000, flags="PA", options=[("MSS", 1460), ("Timestamp", (1, 2))]) / PAYLOAD

    def tagged(*tags: Packet) -> Packet:
        return ether(*tags, IP(src=book.v4[0], dst=book.v4[1]), udp)

    both(tagged(Dot1Q(vlan=7, prio=5, dei=1)), "VLAN", v6=False, vlan=7)
    both(tagged(Dot1AD(vlan=7), Dot1Q(vlan=9)), "QinQ", v6=False, vlan=7)
    both(tagged(Dot1Q(vlan=7), Dot1Q(vlan=9)), "two tags of 802.1Q", v6=False, vlan=7)
    both(tagged(Dot1AD(vlan=7), Dot1AD(vlan=9)), "two tags of 802.1ad", v6=False, vlan=7)
    book.add(
        "three tags: no IP packet",
        [station(vlan=7), select(2, 2)],
        send(tagged(Dot1AD(vlan=7), Dot1Q(vlan=8), Dot1Q(vlan=9))),
    )
    book.add(
        "a tag on IPv6",
        [station(vlan=7), select(2, 2)],
        send(ether(Dot1Q(vlan=7), IPv6(src=book.v6[0], dst=book.v6[1], tc=3), udp)),
    )
    book.add("a tag on something else", [station(vlan=7)], send(ether(Dot1Q(vlan=7, type=0x88B5), PAYLOAD)))
    both(v4(tcp), "TCP with options", 6, v6=False)
    both(v4(udp, options=[IPOption_NOP()] * 4), "IPv4 with four bytes of options", v6=False)
    both(
        v4(udp, options=[IPOption_RR(length=39, routers=["0.0.0.0"] * 9), IPOption_NOP()]),
        "IPv4 with forty bytes of options",
        v6=False,
    )
    both(v4(tcp, options=[IPOption_Timestamp()]), "IPv4 with a timestamp option", 6, v6=False)
    both(v4(UDP(sport=1000, dport=2000, chksum=0) / PAYLOAD), "a UDP checksum of zero", v6=False)
    both(v4(SCTP(sport=1000, dport=2000) / PAYLOAD), "SCTP", 132, v6=False)
    lite = Raw(struct.pack("!HHHH", 1000, 2000, 8, 0xBEEF)) / PAYLOAD
    both(v4(lite, proto=136), "UDP-Lite with a coverage of eight bytes", 136, v6=False)
    dccp = Raw(struct.pack("!HHBBH", 1000, 2000, 4, 0, 0) + bytes(8))
    both(v4(dccp, proto=33), "DCCP", 33, v6=False)
    both(v4(ICMP() / PAYLOAD), "ICMP", 1, v6=False, ports=False)
    both(v4(GRE() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP()), "GRE is not looked into", 47, v6=False, ports=False)
    both(v4(IP(src="10.0.0.1", dst="10.0.0.2") / udp), "IP in IP is not looked into", 4, v6=False, ports=False)
    both(v4(AH(nh=17, payloadlen=4, icv=bytes(12)) / udp, proto=51), "AH behind IPv4", v6=False)
    both(v4(Raw(bytes(24)), proto=50), "ESP", 50, v6=False, ports=False)
    both(v4(udp, flags="MF"), "a first fragment of IPv4", v6=False)
    both(v4(udp, flags="DF", id=0), "IPv4 that must not be fragmented", v6=False)
    for frag in (1, 185, 8191):
        book.add(
            f"a later fragment of IPv4 at {frag}",
            [station(), select(2, 2), mark(*book.v4, 17, 0, 0)],
            send(v4(PAYLOAD, proto=17, frag=frag)),
        )
    both(v6(udp, tc=0x2E, fl=0x12345), "IPv6")
    both(v6(tcp), "TCP behind IPv6", 6)
    both(v6(ICMPv6EchoRequest(data=b"ping")), "ICMPv6", 58, ports=False)
    both(v6(Raw(b""), nh=59), "no next header", 59, ports=False)
    both(v6(SCTP(sport=1000, dport=2000)), "SCTP behind IPv6", 132)
    pad = PadN(optdata=bytes(10))
    both(v6(IPv6ExtHdrHopByHop() / udp), "hop-by-hop options")
    both(v6(IPv6ExtHdrHopByHop(options=[pad, pad]) / tcp), "longer hop-by-hop options", 6)
    both(v6(IPv6ExtHdrDestOpt(options=[pad]) / udp), "destination options")
    both(v6(IPv6ExtHdrRouting(addresses=["2001:db8::9"]) / udp), "a routing header")
    both(v6(IPv6ExtHdrSegmentRouting(addresses=["2001:db8::9", "2001:db8::8"], segleft=1) / udp), "SRv6, two segments")
    many = [f"2001:db8::{number:x}" for number in range(1, 9)]
    both(v6(IPv6ExtHdrSegmentRouting(addresses=many, segleft=7) / tcp), "SRv6, eight segments", 6)
    both(v6(AH(nh=17, payloadlen=4, icv=bytes(12)) / udp, nh=51), "AH behind IPv6")
    both(v6(AH(nh=60, payloadlen=4, icv=bytes(12)) / IPv6ExtHdrDestOpt() / udp, nh=51), "AH and options behind IPv6")
    for number in (135, 139, 140):
        both(v6(Raw(bytes([17, 1]) + bytes(14)) / udp, nh=number), f"extension header {number}")
    both(v6(IPv6ExtHdrFragment(m=1, id=5) / udp), "a first fragment of IPv6")
    both(v6(IPv6ExtHdrFragment(m=0, id=5) / udp), "an atomic fragment")
    for offset in (1, 8191):
        book.add(
            f"a later fragment of IPv6 at {offset}",
            [station(), select(2, 2), mark(*book.v6, 17, 0, 0)],
            send(v6(IPv6ExtHdrFragment(offset=offset, m=1, id=5, nh=17) / PAYLOAD)),
        )
    book.add(
        "a later fragment of options",
        [station(), select(2, 2)],
        send(v6(IPv6ExtHdrHopByHop() / IPv6ExtHdrFragment(offset=9, id=5, nh=60) / PAYLOAD)),
    )
    stack = IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / IPv6ExtHdrSegmentRouting(addresses=many[:1])
    both(v6(stack / IPv6ExtHdrFragment(m=1) / IPv6ExtHdrDestOpt() / udp), "five extension headers")
    for count in (7, 8, 9, 10):
        layers: Packet = IPv6ExtHdrDestOpt()
        for _ in range(count - 1):
            layers /= IPv6ExtHdrDestOpt()
        entries: list[Entity] = [station(), select(2, 2), mark(*book.v6, 17, 1000, 2000), mark(*book.v6, 60, 0, 0)]
        book.add(f"{count} extension headers", entries, send(v6(layers / udp)))
    book.add(
        "the longest extension header",
        [station(), select(2, 2), mark(*book.v6, 17, 1000, 2000)],
        send(v6(Raw(bytes([17, 255]) + bytes(2046)) / udp, nh=60)),
    )
    book.add(
        "bytes behind the IP packet stay",
        [station(), select(2, 2)],
        send(raw(v4(udp)) + b"trailer", summary="a trailer"),
        send(raw(v6(udp)) + b"trailer", summary="a trailer"),
    )
    book.add(
        "no payload at all",
        [station(), select(2, 2)],
        send(v4(UDP(sport=1, dport=2))),
        send(v4(TCP(sport=1, dport=2))),
        send(v6(UDP(sport=1, dport=2))),
        send(v4(proto=99)),
    )
    book.add(
        "large packets",
        [station(), select(2, 2)],
        send(v4(UDP(sport=1, dport=2) / Raw(bytes(1472)))),
        send(v6(UDP(sport=1, dport=2) / Raw(bytes(1452)))),
        send(v4(UDP(sport=1, dport=2) / Raw(bytes(8000)))),
    )
    return book


def malformed() -> Book:
    book = Book(8, "malformed packets, each kind: dropped and counted, not recorded")
    tables: list[Entity] = [station(), select(2, 2)]

    def v4(*layers: Packet, **more: object) -> Packet:
        return ether(IP(src=book.v4[0], dst=book.v4[1], **more), *layers)

    def v6(*layers: Packet, **more: object) -> Packet:
        return ether(IPv6(src=book.v6[0], dst=book.v6[1], **more), *layers)

    udp = UDP(sport=1000, dport=2000) / PAYLOAD
    tcp = TCP(sport=1000, dport=2000, flags="A") / PAYLOAD

    def cut(packet: Packet, length: int, name: str) -> None:
        book.add(name, tables, send(raw(packet)[:length], summary=f"{packet.summary()} cut to {length} bytes"))

    cut(ether(Dot1Q(vlan=1), IP(), udp), 16, "the frame ends in a tag")
    cut(ether(Dot1Q(vlan=1), Dot1Q(vlan=2), IP(), udp), 20, "the frame ends in the second tag")
    for length in (14, 15, 33):
        cut(v4(udp), length, f"the frame ends in the IPv4 header, at {length}")
    for length in (34, 41):
        cut(v4(udp), length, f"the frame ends in UDP, at {length}")
    for length in (34, 37, 53):
        cut(v4(tcp), length, f"the frame ends in TCP, at {length}")
    cut(v4(udp), 42, "the frame ends behind UDP")
    cut(v4(tcp), 54, "the frame ends behind TCP")
    cut(v4(SCTP(sport=1, dport=2)), 36, "the frame ends in SCTP's ports")
    cut(v4(SCTP(sport=1, dport=2)), 38, "the frame ends behind SCTP's ports")
    for length in (14, 15, 53):
        cut(v6(udp), length, f"the frame ends in the IPv6 header, at {length}")
    cut(v6(udp), 61, "the frame ends in UDP behind IPv6")
    cut(v4(udp, options=[IPOption_NOP()] * 4), 36, "the frame ends in the IPv4 options")
    cut(v6(IPv6ExtHdrHopByHop() / udp), 55, "the frame ends in the first bytes of an extension header")
    cut(v6(IPv6ExtHdrHopByHop() / udp), 58, "the frame ends in an extension header")
    cut(v6(IPv6ExtHdrFragment() / udp), 57, "the frame ends in a fragment header")
    cut(v4(AH(nh=17, payloadlen=4, icv=bytes(12)) / udp, proto=51), 40, "the frame ends in AH")
    for version in (0, 5, 6, 15):
        book.add(f"version {version} in an IPv4 header", tables, send(v4(udp, version=version)))
    for version in (0, 4, 7):
        book.add(f"version {version} in an IPv6 header", tables, send(v6(udp, version=version)))
    for ihl in (0, 4):
        book.add(f"a header length of {ihl}", tables, send(v4(udp, ihl=ihl)))
    book.add("a header longer than the frame", tables, send(v4(UDP(), ihl=15)))
    for length in (0, 19, 20, 21, 27, 28):
        book.add(f"a total length of {length} over UDP", tables, send(v4(udp, len=length)))
    for length in (20, 39, 40):
        book.add(f"a total length of {length} over TCP", tables, send(v4(tcp, len=length)))
    book.add("a total length beyond the frame", tables, send(v4(udp, len=1500)))
    book.add("a total length below the header's", tables, send(v4(udp, ihl=6, len=23)))
    for length in (0, 7, 8, 40, 65495, 65496, 65535):
        book.add(f"a payload length of {length} over UDP behind IPv6", tables, send(v6(udp, plen=length)))
    for offset in (0, 4, 5, 15):
        book.add(
            f"a data offset of {offset}", tables, send(v4(TCP(dataofs=offset) / PAYLOAD)), send(v4(TCP(dataofs=offset)))
        )
    for length in (0, 7, 8, 100):
        book.add(f"a UDP length of {length} is nobody's matter", tables, send(v4(UDP(len=length) / PAYLOAD)))
    book.add(
        "an extension header longer than the packet", tables, send(v6(Raw(bytes([17, 20]) + bytes(6)) / udp, nh=60))
    )
    book.add(
        "an extension header longer than the payload length",
        tables,
        send(v6(Raw(bytes([17, 2]) + bytes(22)) / udp, nh=60, plen=16)),
    )
    book.add("a fragment header and no room for it", tables, send(v6(Raw(bytes(8)), nh=44, plen=7)))
    book.add("AH longer than the packet", tables, send(v4(Raw(bytes([17, 200]) + bytes(10)), proto=51)))
    book.add(
        "AH shorter than itself",
        tables,
        send(v4(Raw(bytes([17, 0]) + bytes(6)) / udp, proto=51)),
        send(v4(Raw(bytes([17, 0]) + bytes(2)), proto=51)),
    )
    book.add(
        "malformed in a VLAN with its station",
        [station(vlan=5), select(1, 1)],
        send(ether(Dot1Q(vlan=5), IP(version=5), udp)),
    )
    book.add("malformed for an unknown station", [], send(v4(udp, ihl=4)))
    return book
