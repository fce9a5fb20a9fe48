"""Flow records at their checkpoints and ends, and the controller's packets."""

from __future__ import annotations

from collections.abc import Sequence

from scapy.all import ARP, IP, TCP, UDP, Dot1AD, Dot1Q, IPv6, IPv6ExtHdrHopByHop, Packet, Raw

from dinnet.dataplane.conformance.vectors import Step
from dinnet.dataplane.entity import DefaultEntry, Entity, Group, Lpm, mac
from dinnet.dataplane.tables import (
    ConfigurePort,
    Flood,
    ForwardDrop,
    ForwardL2,
    ForwardV4,
    IngressPort,
    Route,
    ToController,
)

from .book import NO_PORT, A, B, Book, C, ether, exactly, out, send, station
from .marks import mark, select

CPU_PORT = 510


def records() -> Book:
    book = Book(10, "flow records: checkpoints, both directions, what ends a flow, what tells flows apart")
    both = [station(B, 2), station(A, 1)]

    def udp(back: bool = False, size: int = 20, sport: int = 1000, dport: int = 2000, **more: object) -> Packet:
        one, two = book.v4
        if back:
            return ether(IP(src=two, dst=one, **more), UDP(sport=dport, dport=sport), Raw(bytes(size)), src=B, dst=A)
        return ether(IP(src=one, dst=two, **more), UDP(sport=sport, dport=dport), Raw(bytes(size)))

    def tcp(flags: str, back: bool = False, size: int = 0, seq: int = 1, ack: int = 1, window: int = 500) -> Packet:
        one, two = book.v4[::-1] if back else book.v4
        ports = {"sport": 80, "dport": 3000} if back else {"sport": 3000, "dport": 80}
        ends = {"src": B, "dst": A} if back else {}
        segment = TCP(flags=flags, seq=seq, ack=ack, window=window, **ports)
        return ether(IP(src=one, dst=two), segment, *([Raw(bytes(size))] if size else []), **ends)

    def exchange(*packets: Packet) -> Sequence[Step]:
        return [send(packet, 2 if packet.src == B else 1) for packet in packets]

    for count in (3, 4, 5, 7, 8, 16, 32):
        book.add(f"{count} datagrams", both, send(udp(), repeat=count))
    # After the 64th a second makes a checkpoint, too. Without payload it is no matter how fast they come.
    for count in (64, 127, 128, 192, 193):
        book.add(f"{count} datagrams at once", both, send(udp(size=0), repeat=count, at_once=True))
    book.add(
        "64 datagrams, and one a second later",
        both,
        send(udp(size=0), repeat=64, at_once=True),
        send(udp(size=0), pause_ms=1100),
        send(udp(size=0)),
        send(udp(True, 0), 2, pause_ms=1100),
    )
    book.add(
        "63 datagrams, and one a second later",
        both,
        send(udp(size=0), repeat=63, at_once=True),
        send(udp(size=0), pause_ms=1100),
        send(udp(size=0)),
    )
    book.add("127 datagrams and an answer", both, send(udp(size=0), repeat=127, at_once=True), send(udp(True, 0), 2))
    book.add("there and back in turn", both, *exchange(*(udp(n % 2 == 1, 10 + n) for n in range(16))))
    book.add("the answer only", both, *exchange(udp(), *(udp(True, 100 + n) for n in range(7))))
    book.add("more turns than are kept", both, *exchange(*(udp(n % 2 == 1, 50 * n) for n in range(1, 17))))
    book.add("several packets a turn", both, *exchange(*(udp(n // 3 % 2 == 1, 7 * n) for n in range(1, 17))))
    sizes = (1252, 1251, 1253, 0, 1, 1472, 0, 600)
    book.add("sizes around a full segment", both, *(send(udp(size=size)) for size in sizes))
    book.add("datagrams without payload", both, send(udp(size=0), repeat=4))
    book.add("long gaps", both, *(send(udp(size=100), pause_ms=30) for _ in range(4)))

    hello = [tcp("S", seq=100, ack=0), tcp("SA", True, seq=500, ack=101), tcp("A", seq=101, ack=501)]
    talk = [
        tcp("PA", size=300, seq=101, ack=501),
        tcp("A", True, seq=501, ack=401),
        tcp("PA", True, size=1400, seq=501, ack=401),
        tcp("A", seq=401, ack=1901),
    ]
    bye = [tcp("FA", seq=401, ack=1901), tcp("FA", True, seq=1901, ack=402), tcp("A", seq=402, ack=1902)]
    book.add("a whole connection", both, *exchange(*hello, *talk, *bye))
    hello = [tcp("S", seq=100, ack=0), tcp("SA", True, seq=500, ack=101), tcp("A", seq=101, ack=501)]
    book.add("the answer seen before the question", both, *exchange(hello[1], hello[0], hello[2], tcp("PA", size=9)))
    book.add("the answer seen alone", both, *exchange(tcp("SA", True, seq=500, ack=101), *(tcp("PA", size=9),) * 3))
    book.add("a SYN sent again", both, *exchange(*(tcp("S", seq=100, ack=0),) * 3, tcp("SA", True, seq=5, ack=101)))
    book.add(
        "another SYN on the same ports",
        both,
        *exchange(
            tcp("S", seq=100),
            tcp("A", seq=101),
            tcp("S", seq=9000),
            tcp("A", seq=9001),
            tcp("PA", seq=9001, size=10),
            tcp("A", seq=9011),
        ),
    )
    book.add(
        "a SYN from the other side on the same ports",
        both,
        *exchange(
            tcp("S", seq=100),
            tcp("A", seq=101),
            tcp("S", True, seq=777),
            tcp("SA", ack=778),
            tcp("A", True),
            tcp("PA", True, size=5),
        ),
    )
    book.add(
        "a SYN after data",
        both,
        *exchange(tcp("A", size=5), tcp("A", size=5), tcp("S", seq=100), tcp("A"), tcp("A"), tcp("A")),
    )
    book.add(
        "a new connection after FINs",
        both,
        *exchange(
            *hello_of(tcp),
            tcp("FA"),
            tcp("FA", True),
            tcp("A"),
            tcp("S", seq=7000),
            tcp("SA", True, ack=7001),
            tcp("A"),
            tcp("A"),
        ),
    )
    book.add(
        "one FIN is no end",
        both,
        *exchange(*hello_of(tcp), tcp("FA"), tcp("A", True, size=10), tcp("S", seq=7000), tcp("A"), tcp("A"), tcp("A")),
    )
    book.add(
        "a new connection after a RST",
        both,
        *exchange(*hello_of(tcp), tcp("R"), tcp("S", seq=7000), tcp("SA", True, ack=7001), tcp("A"), tcp("A")),
    )
    book.add(
        "a RST of the other side",
        both,
        *exchange(*hello_of(tcp), tcp("RA", True), tcp("A"), tcp("S", seq=7000), tcp("RA", True), tcp("S", seq=8000)),
    )
    book.add("FINs, then a RST", both, *exchange(*hello_of(tcp), tcp("FA"), tcp("FA", True), tcp("R"), tcp("S", seq=1)))
    book.add("every flag", both, *exchange(*(tcp(flags) for flags in ("SFRPAUEC", "", "F", "P", "U", "E", "C", "FPU"))))
    windows = (0, 1, 65535, 1000)
    book.add(
        "windows of both sides", both, *exchange(*(tcp("A", n % 2 == 1, window=w) for n, w in enumerate(windows * 2)))
    )
    book.add(
        "a window with RST is no window",
        both,
        *exchange(tcp("A", window=5), tcp("R", window=0), tcp("R", window=1), tcp("A", window=6)),
    )

    def v6(label: int, back: bool = False) -> Packet:
        one, two = book.v6[::-1] if back else book.v6
        return ether(
            IPv6(src=one, dst=two, fl=label),
            UDP(sport=1, dport=2) if not back else UDP(sport=2, dport=1),
            Raw(bytes(30)),
            **({"src": B, "dst": A} if back else {}),
        )

    labels: list[Entity] = [*both, *(IngressPort(port=port, action=ConfigurePort(0, 1)) for port in (1, 2))]
    book.add("IPv6, its first label", both, *exchange(v6(5), v6(6), v6(9, True), v6(5)))
    book.add("IPv6, the first packet an answer's", both, *exchange(v6(9, True), v6(5), v6(5), v6(5)))
    book.add("a flow for each label", labels, *exchange(*(v6(5), v6(6)) * 4))
    book.add("labels of both directions are different flows", labels, *exchange(*(v6(5), v6(6, True)) * 4))
    extended = ether(IPv6(src=book.v6[0], dst=book.v6[1]), IPv6ExtHdrHopByHop(), UDP(sport=1, dport=2), Raw(bytes(30)))
    book.add("extension headers are no payload", both, send(extended, repeat=4))
    for tags, name in (([Dot1Q(vlan=7)], "a VLAN"), ([Dot1AD(vlan=7), Dot1Q(vlan=9)], "two VLANs")):

        def inside(*layers: Packet) -> Packet:
            return ether(*layers, IP(src=book.v4[0], dst=book.v4[1]), UDP(sport=1, dport=2), Raw(bytes(30)))

        tables = [station(), station(vlan=7)]
        book.add(f"a flow in {name} and one outside", tables, *exchange(*(inside(*tags), inside()) * 4))
    same = ether(IP(src=book.v4[0], dst=book.v4[0]), UDP(sport=5, dport=5), Raw(bytes(30)))
    book.add("both ends the same", both, send(same, repeat=4))
    higher = ether(IP(src=book.v4[1], dst=book.v4[0]), UDP(sport=5, dport=5), Raw(bytes(30)))
    lower = ether(IP(src=book.v4[0], dst=book.v4[1]), UDP(sport=5, dport=5), Raw(bytes(9)))
    book.add("the higher address first", both, *exchange(higher, lower, lower, higher))
    for proto in (1, 47, 89):
        plain = ether(IP(src=book.v4[0], dst=book.v4[1], proto=proto), Raw(bytes(30)))
        book.add(f"protocol {proto} has flows without ports", both, send(plain, repeat=4))
    fragment = [
        ether(IP(src=book.v4[0], dst=book.v4[1], flags="MF"), UDP(sport=1, dport=2), Raw(bytes(24))),
        ether(IP(src=book.v4[0], dst=book.v4[1], frag=4, proto=17), Raw(bytes(24))),
    ]
    book.add("later fragments are in no flow", both, *exchange(*fragment * 5))
    book.add(
        "packets that are dropped are recorded",
        [ForwardL2(vlan=0, dst=mac(B), action=ForwardDrop())],
        send(udp(), repeat=4),
    )
    book.add("packets without a way are recorded", [], send(udp(), repeat=4))
    book.add(
        "packets with no hop left are recorded",
        [ForwardV4(dst=Lpm(0, 0), action=Route(2, 1, 2))],
        send(udp(ttl=1), repeat=4),
    )
    book.add("the last packet's port is told", both, send(udp(), 1), send(udp(), 3), send(udp(), 4), send(udp(), 5))
    book.add("two flows at once", both, *(send(udp(sport=1000 + n % 2)) for n in range(8)))
    book.add("a mark and a record", [*both, mark(*book.v4, 17, 1000, 2000)], send(udp(), repeat=4))
    return book


def hello_of(tcp):  # type: ignore[no-untyped-def]
    return [tcp("S", seq=100, ack=0), tcp("SA", True, seq=500, ack=101), tcp("A", seq=101, ack=501)]


def controller() -> Book:
    book = Book(11, "the controller's packets, in and out")

    def udp(dst: str = B, **more: object) -> Packet:
        return ether(IP(src=book.v4[0], dst=book.v4[1], **more), UDP(sport=1000, dport=2000), Raw(bytes(30)), dst=dst)

    up = ForwardL2(vlan=0, dst=mac(B), action=ToController())
    for port in (1, 3, 6):
        book.add(f"in from port {port}", [up], send(udp(), port))
    book.add("in with a mark", [up, select(9, 1)], send(udp()))
    book.add(
        "in with a tag",
        [ForwardL2(vlan=7, dst=mac(B), action=ToController())],
        send(ether(Dot1Q(vlan=7, prio=3), ARP())),
    )
    book.add(
        "in with two tags",
        [ForwardL2(vlan=7, dst=mac(B), action=ToController()), select(1, 1)],
        send(ether(Dot1AD(vlan=7), Dot1Q(vlan=9), IP(src=book.v4[0], dst=book.v4[1]), UDP())),
    )
    book.add("in, 1500 bytes", [up], send(udp() / Raw(bytes(1428))))
    book.add(
        "in, whatever it is",
        [DefaultEntry("forward_l2", ToController())],
        send(ether(ARP(), dst=C)),
        send(ether(Raw(bytes(50)), dst=C)),
    )
    for port in (1, 4, 6):
        book.add(f"out of port {port}, as it is", [station(), select(3, 3)], out(udp(), port))
    book.add("out with a tag", [], out(ether(Dot1Q(vlan=7), ARP()), 3))
    book.add("out, no IP packet", [], out(ether(ARP()), 3), out(ether(Raw(bytes(60))), 2))
    book.add("out, the smallest", [], out(ether(), 3))
    book.add("out as if it had come in, to a station", [station(), select(3, 3)], out(udp(), NO_PORT))
    book.add("out as if it had come in, routed", [ForwardV4(dst=Lpm(0, 0), action=Route(2, 1, 2))], out(udp(), NO_PORT))
    book.add("out as if it had come in, unknown", [], out(udp(), NO_PORT))
    book.add(
        "out as if it had come in, dropped", [ForwardL2(vlan=0, dst=mac(B), action=ForwardDrop())], out(udp(), NO_PORT)
    )
    book.add("out as if it had come in, to the controller", [up], out(udp(), NO_PORT))
    book.add(
        "out as if it had come in, flooded",
        [Group(2, (1, 2, 3)), DefaultEntry("forward_l2", Flood(2))],
        out(udp(), NO_PORT),
        out(ether(ARP()), NO_PORT),
    )
    book.add("out as if it had come in, malformed", [station()], out(udp(version=5), NO_PORT))
    book.add(
        "out as if it had come in, in a slice of its port",
        [station(), select(8, 3, ingress_port=exactly(CPU_PORT, 9))],
        out(udp(), NO_PORT),
        send(udp()),
    )
    book.add("out as if it had come in, recorded", [station()], *[out(udp(), NO_PORT)] * 4)
    return book
