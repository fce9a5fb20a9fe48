"""Token buckets and what becomes of packets above them. Never refilled, they make it a matter of counting."""

from __future__ import annotations

from scapy.all import IP, UDP, Dot1Q, IPv6, Packet, Raw

from dinnet.dataplane.entity import DefaultEntry, Entity, Group, Lpm, MeterCell, Rates, address, mac
from dinnet.dataplane.tables import (
    Degrade,
    Exceed,
    Flood,
    ForwardL2,
    ForwardV4,
    MarkToDscp,
    MetersDrop,
    Microflow,
    Reroute,
    Route,
    SetDscp,
    SetMark,
    ToController,
)

from .book import NO_PORT, ROUTER, A, B, Book, C, ether, send, station
from .marks import select

MICROFLOW, SLICE = 1, 2  # bucket_t
SLICES = 16
CPU_PORT = 510
FRAME_BYTES = 100
AMPLE = 1 << 30


def bucket(green: int, yellow: int = 0) -> Rates:
    """Never refilled: room for so many frames of 100 bytes of each colour."""
    return Rates(0, green * FRAME_BYTES, 0, (green + yellow) * FRAME_BYTES)


def meters() -> Book:
    book = Book(9, "meters: colours, and degrade, reroute and drop from either bucket")

    def udp(size: int = FRAME_BYTES, sport: int = 1000, dst: str = B) -> Packet:
        packet = ether(IP(src=book.v4[0], dst=book.v4[1], tos=1), UDP(sport=sport, dport=2000), dst=dst)
        return packet / Raw(bytes(size - len(packet)))

    def udp6() -> Packet:
        packet = ether(IPv6(src=book.v6[0], dst=book.v6[1], tc=2), UDP(sport=1000, dport=2000))
        return packet / Raw(bytes(FRAME_BYTES - len(packet)))

    def flow(rates: Rates | None, slice_number: int = 3, tc: int = 2, sport: int = 1000) -> Microflow:
        return Microflow(
            src=address(book.v4[0]),
            dst=address(book.v4[1]),
            proto=17,
            sport=sport,
            dport=2000,
            vlan=0,
            flow_label=0,
            action=SetMark(slice_number, tc, 7),
            rates=rates,
        )

    def link(port: int, slice_number: int, rates: Rates) -> MeterCell:
        return MeterCell("slice_meter", port * SLICES + slice_number, rates)

    for green, yellow in ((0, 0), (1, 0), (3, 0), (0, 2), (2, 1), (2, 3)):
        shown = f"{green} green, {yellow} yellow, the rest red"
        book.add(
            f"a micro-flow's bucket: {shown}",
            [station(), flow(bucket(green, yellow))],
            *(send(udp()) for _ in range(6)),
        )
        book.add(
            f"a slice's bucket: {shown}",
            [station(), select(5, 3), link(2, 5, bucket(green, yellow))],
            *(send(udp()) for _ in range(6)),
        )
    book.add("a byte short of a frame", [station(), flow(Rates(0, 199, 0, 299))], *(send(udp()) for _ in range(4)))
    book.add(
        "frames of several sizes",
        [station(), flow(Rates(0, 300, 0, 700))],
        *(send(udp(size)) for size in (150, 200, 150, 300, 100, 60)),
    )
    book.add("an ample bucket", [station(), flow(Rates(AMPLE, AMPLE, AMPLE, AMPLE))], send(udp(), repeat=20))
    book.add("no meter set", [station(), flow(None)], send(udp(), repeat=20))
    tagged = Dot1Q(vlan=5)
    packet = ether(tagged, IP(src="10.9.200.1", dst="10.9.200.2"), UDP(sport=1, dport=2), Raw(bytes(54)))
    book.add(
        "a tag counts among the bytes",
        [station(vlan=5), select(5, 1), link(2, 5, Rates(0, len(packet), 0, 200))],
        send(packet),
        send(packet),
        send(packet),
    )

    actions = {
        "degrade": Degrade(),
        "reroute": Reroute(4, 0, 0),
        "reroute to a station": Reroute(4, mac(A) ^ 0x55, mac(C)),
        "drop": MetersDrop(),
    }
    for name, action in actions.items():
        for number, which in ((MICROFLOW, "micro-flow"), (SLICE, "slice")):
            red: list[Entity] = [flow(bucket(1))] if number == MICROFLOW else [flow(None), link(2, 3, bucket(1))]
            book.add(
                f"{name} above the {which}'s bucket",
                [station(), *red, Exceed(slice=3, bucket=number, action=action)],
                send(udp()),
                send(udp()),
                send(udp()),
            )
            book.add(
                f"{name} by default above the {which}'s bucket",
                [station(), *red, DefaultEntry("exceed", action)],
                send(udp()),
                send(udp()),
            )
            other = Exceed(slice=4, bucket=number, action=MetersDrop())
            book.add(
                f"{name} above the {which}'s bucket, other rules for others",
                [
                    station(),
                    *red,
                    Exceed(slice=3, bucket=number, action=action),
                    other,
                    Exceed(slice=3, bucket=3 - number, action=MetersDrop()),
                ],
                send(udp()),
                send(udp()),
            )
    both = [
        station(),
        flow(bucket(2)),
        link(2, 3, bucket(1, 1)),
        Exceed(slice=3, bucket=SLICE, action=Reroute(4, 0, 0)),
    ]
    book.add(
        "both buckets: what the micro-flow's refuses leaves the slice's alone",
        both,
        *(send(udp()) for _ in range(4)),
        send(udp(sport=1001)),
    )
    book.add(
        "the worse colour counts",
        [station(), flow(bucket(1, 3)), link(2, 3, bucket(3, 1))],
        *(send(udp()) for _ in range(4)),
    )
    book.add(
        "two micro-flows of one slice",
        [station(), flow(bucket(2)), flow(bucket(1), sport=1001), link(2, 3, bucket(2, 1))],
        send(udp()),
        send(udp(sport=1001)),
        send(udp(sport=1001)),
        send(udp()),
        send(udp()),
    )
    book.add(
        "each link has buckets of its own",
        [station(), station(C, 4), select(6, 2), link(2, 6, bucket(1)), link(4, 6, bucket(2))],
        *(send(udp(dst=dst)) for dst in (B, C, B, C, C)),
    )
    book.add(
        "each slice has buckets of its own",
        [station(), flow(None), select(6, 2), link(2, 6, bucket(1)), link(2, 3, bucket(2))],
        *(send(udp(sport=sport)) for sport in (1, 1000, 1, 1000, 1000)),
    )
    book.add(
        "both IPs share a slice's bucket",
        [station(), select(6, 2), link(2, 6, bucket(1, 1))],
        send(udp()),
        send(udp6()),
        send(udp()),
        send(udp6()),
    )
    book.add(
        "a routed packet above its bucket",
        [ForwardV4(dst=Lpm(0, 0), action=Route(2, mac(ROUTER), mac(B))), flow(bucket(1))],
        send(udp()),
        send(udp()),
    )
    book.add(
        "degraded packets by a plan of their own",
        [
            station(),
            flow(bucket(1)),
            MarkToDscp(slice=3, tc=0, action=SetDscp(8)),
            MarkToDscp(slice=3, tc=2, action=SetDscp(46)),
        ],
        send(udp()),
        send(udp()),
    )
    flooded: list[Entity] = [Group(3, (2, 3, 4)), ForwardL2(vlan=0, dst=mac(C), action=Flood(3)), select(6, 2)]
    book.add(
        "a flooded packet is metered once",
        [*flooded, link(NO_PORT, 6, bucket(1, 1))],
        *(send(udp(dst=C)) for _ in range(3)),
    )
    book.add(
        "a flooded packet rerouted",
        [*flooded, link(NO_PORT, 6, bucket(0)), Exceed(slice=6, bucket=SLICE, action=Reroute(5, 0, 0))],
        send(udp(dst=C)),
    )
    book.add(
        "a flooded packet dropped",
        [*flooded, link(NO_PORT, 6, bucket(0)), Exceed(slice=6, bucket=SLICE, action=MetersDrop())],
        send(udp(dst=C)),
    )
    controller: list[Entity] = [ForwardL2(vlan=0, dst=mac(C), action=ToController()), select(6, 2)]
    book.add(
        "the controller's packets have a bucket, too",
        [*controller, link(CPU_PORT, 6, bucket(1)), Exceed(slice=6, bucket=SLICE, action=MetersDrop())],
        send(udp(dst=C)),
        send(udp(dst=C)),
    )
    book.add(
        "what is for the controller rerouted",
        [*controller, link(CPU_PORT, 6, bucket(0)), Exceed(slice=6, bucket=SLICE, action=Reroute(5, 0, 0))],
        send(udp(dst=C)),
    )
    for slice_number in (0, 1, 7, 15):
        book.add(
            f"slice {slice_number} exceeded in every way",
            [
                station(),
                flow(bucket(1), slice_number, 3),
                link(2, slice_number, bucket(2)),
                Exceed(slice=slice_number, bucket=MICROFLOW, action=MetersDrop()),
            ],
            send(udp()),
            send(udp()),
            send(udp(sport=1001), 3),
        )
    return book
