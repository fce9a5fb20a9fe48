"""Which slice and queue packets get: slice_select, microflow, DSCP and its plans."""

from __future__ import annotations

import dataclasses
from typing import Any

from scapy.all import IP, SCTP, TCP, UDP, Dot1Q, IPv6, Packet, Raw

from dinnet.dataplane.entity import Entity, Ternary, address
from dinnet.dataplane.tables import (
    ConfigurePort,
    DscpToMark,
    IngressPort,
    MarkToDscp,
    Microflow,
    ReadDscp,
    SetDscp,
    SetMark,
    SetSlice,
    SliceSelect,
)

from .book import Book, ether, exactly, send, station

ALL_ONES = (1 << 128) - 1
PAYLOAD = Raw(b"0123456789")


def select(slice_number: int, tc: int, priority: int = 10, **match: Ternary) -> SliceSelect:
    return SliceSelect(priority=priority, action=SetSlice(slice_number, tc), **match)


def slices() -> Book:
    book = Book(4, "slice_select: every field, exactly, in part and not at all; priorities")

    def udp(**more: Any) -> Packet:
        return ether(IP(src=book.v4[0], dst=book.v4[1], **more), UDP(sport=0x1234, dport=0xABCD), PAYLOAD)

    def udp6() -> Packet:
        return ether(IPv6(src=book.v6[0], dst=book.v6[1]), UDP(sport=0x1234, dport=0xABCD), PAYLOAD)

    book.add("an entry for everything", [station(), select(1, 3)], send(udp()), send(udp6()), send(udp(), 3))
    values = {
        "ingress_port": (1, 9),
        "proto": (17, 8),
        "sport": (0x1234, 16),
        "dport": (0xABCD, 16),
        "vlan": (0, 12),
    }
    for name, (value, bits) in values.items():
        hit = exactly(value, bits)
        book.add(f"{name} as it is", [station(), select(2, 1, **{name: hit})], send(udp()), send(udp6()))
        book.add(f"another {name}", [station(), select(2, 1, **{name: exactly(value ^ 1, bits)})], send(udp()))
        upper = Ternary(value & ~3, ((1 << bits) - 1) & ~3)
        book.add(f"{name} but for its last two bits", [station(), select(3, 2, **{name: upper})], send(udp()))
        other = Ternary((value & ~3) ^ 4, ((1 << bits) - 1) & ~3)
        book.add(f"{name} with another bit", [station(), select(3, 2, **{name: other})], send(udp()), send(udp6()))
    for name in ("src", "dst"):
        end = 0 if name == "src" else 1
        for bits in (0, 1, 8, 20, 31, 32):
            own = address(book.v4[end])
            mask = ALL_ONES ^ ((1 << (32 - bits)) - 1)
            wrong = own ^ (1 << (32 - bits)) if bits else own ^ (1 << 40)
            book.add(
                f"{bits} bits of an IPv4 {name}",
                [station(), select(4, 1, **{name: Ternary(own & mask, mask)})],
                send(udp()),
                send(udp6()),
            )
            book.add(
                f"other {bits} bits of an IPv4 {name}",
                [station(), select(4, 1, **{name: Ternary(wrong & mask, mask)})],
                send(udp()),
            )
        for bits in (1, 32, 63, 64, 65, 127, 128):
            own = address(book.v6[end])
            mask = ALL_ONES ^ ((1 << (128 - bits)) - 1)
            book.add(
                f"{bits} bits of an IPv6 {name}",
                [station(), select(5, 2, **{name: Ternary(own & mask, mask)})],
                send(udp6()),
                send(udp()),
            )
    scattered = 0x0F0F << 64 | 0xF0F0
    book.add(
        "a scattered mask of src",
        [station(), select(6, 1, src=Ternary(address(book.v6[0]) & scattered, scattered))],
        send(udp6()),
        send(udp()),
    )
    low, high = select(1, 1, 5), select(2, 2, 6, proto=exactly(17, 8))
    book.add("the higher priority wins, the narrower", [station(), low, high], send(udp()), send(udp(proto=253)))
    wide, narrow = select(1, 1, 60), select(2, 2, 5, proto=exactly(17, 8))
    book.add("the higher priority wins, the wider", [station(), wide, narrow], send(udp()))
    many: list[Entity] = [
        select(number % 16, number % 4, priority, **match)
        for number, (priority, match) in enumerate(
            [
                (100, {"proto": exactly(6, 8)}),
                (90, {"dport": exactly(80, 16)}),
                (80, {"dport": Ternary(0xAB00, 0xFF00)}),
                (70, {"sport": exactly(0x1234, 16), "dport": exactly(0xABCD, 16)}),
                (60, {"ingress_port": exactly(3, 9)}),
                (50, {"proto": exactly(17, 8), "ingress_port": exactly(1, 9)}),
                (1, {}),
            ],
            start=1,
        )
    ]
    for place in range(len(many)):
        book.add(
            f"of many that overlap the highest, the first {place} taken away",
            [station(), *many[place:]],
            send(udp()),
            send(udp(), 3),
            send(udp6(), 4),
        )
    book.add(
        "one priority, entries that do not overlap",
        [station(), select(1, 1, 7, proto=exactly(6, 8)), select(2, 2, 7, proto=exactly(17, 8))],
        send(udp()),
        send(ether(IP(src=book.v4[0], dst=book.v4[1]), TCP())),
    )
    book.add(
        "the same fields at two priorities",
        [station(), select(1, 1, 7, proto=exactly(17, 8)), select(2, 2, 8, proto=exactly(17, 8))],
        send(udp()),
    )
    top = (1 << 31) - 1
    book.add("the highest priority there is", [station(), select(1, 1, top - 1), select(7, 3, top)], send(udp()))
    everything = {
        "ingress_port": exactly(1, 9),
        "src": exactly(address(book.v4[0]), 128),
        "dst": exactly(address(book.v4[1]), 128),
        "proto": exactly(17, 8),
        "sport": exactly(0x1234, 16),
        "dport": exactly(0xABCD, 16),
        "vlan": exactly(0, 12),
    }
    book.add("all fields at once", [station(), select(15, 3, **everything)], send(udp()), send(udp(), 2))
    book.add(
        "all VLANs of a block",
        [station(vlan=0x123), select(3, 3, vlan=Ternary(0x120, 0xFF0))],
        send(ether(Dot1Q(vlan=0x123), IP(src=book.v4[0], dst=book.v4[1]), UDP())),
    )
    book.add(
        "a protocol without ports has ports of zero",
        [station(), select(3, 3, sport=exactly(0, 16), dport=exactly(0, 16))],
        send(ether(IP(src=book.v4[0], dst=book.v4[1], proto=47), PAYLOAD)),
        send(udp()),
    )
    for number in range(16):
        book.add(
            f"slice {number}, each queue",
            [station(), *(select(number, tc, 10, sport=exactly(tc, 16)) for tc in range(4))],
            *(send(ether(IP(src=book.v4[0], dst=book.v4[1]), UDP(sport=tc))) for tc in range(4)),
        )
    return book


def mark(source: str, to: str, proto: int, sport: int, dport: int, *, vlan: int = 0, label: int = 0) -> Microflow:
    return Microflow(
        src=address(source),
        dst=address(to),
        proto=proto,
        sport=sport,
        dport=dport,
        vlan=vlan,
        flow_label=label,
        action=SetMark(1, 3, 4_000_000_000),
    )


def microflows() -> Book:
    book = Book(5, "microflow: every part of the key, and what comes before it")
    labels = IngressPort(port=1, action=ConfigurePort(0, 1))

    def udp(**more: Any) -> Packet:
        return ether(IP(src=book.v4[0], dst=book.v4[1]), UDP(sport=1000, dport=2000), PAYLOAD, **more)

    def udp6(label: int = 0) -> Packet:
        return ether(IPv6(src=book.v6[0], dst=book.v6[1], fl=label), UDP(sport=1000, dport=2000), PAYLOAD)

    def own() -> Microflow:
        return mark(*book.v4, 17, 1000, 2000)

    def own6(label: int = 0) -> Microflow:
        return mark(*book.v6, 17, 1000, 2000, label=label)

    book.add("its packets, either IP", [station(), own(), own6()], send(udp()), send(udp6()))
    book.add(
        "the other direction is another micro-flow", [station(), mark(*book.v4[::-1], 17, 2000, 1000)], send(udp())
    )
    for name, change in {
        "src": 1,
        "dst": 1 << 31,
        "proto": 1,
        "sport": 1,
        "dport": 0x8000,
        "vlan": 1,
        "flow_label": 1,
    }.items():
        other = dataclasses.replace(own(), **{name: getattr(own(), name) ^ change})
        book.add(f"another {name}, IPv4", [station(), other], send(udp()))
        other = dataclasses.replace(own6(), **{name: getattr(own6(), name) ^ change})
        book.add(f"another {name}, IPv6", [station(), other], send(udp6()))
    book.add("labels are ignored where the port does not say so", [station(), own6(), own6(7)], send(udp6(7)))
    book.add(
        "labels tell micro-flows apart where the port says so",
        [station(), labels, own6(7), own6()],
        send(udp6(7)),
        send(udp6()),
        send(udp6(8)),
        send(udp6(7), 2),
    )
    book.add("the largest label", [station(), labels, own6(0xFFFFF)], send(udp6(0xFFFFF)), send(udp6(0x7FFFF)))
    book.add("IPv4 has no label, whatever the port says", [station(), labels, own()], send(udp()))
    book.add(
        "in a VLAN",
        [station(vlan=5), mark(*book.v4, 17, 1000, 2000, vlan=5), own()],
        send(ether(Dot1Q(vlan=5), IP(src=book.v4[0], dst=book.v4[1]), UDP(sport=1000, dport=2000))),
    )
    book.add("it comes after slice_select", [station(), select(2, 1), own()], send(udp()), send(udp6()))
    book.add(
        "an IPv4-mapped IPv6 packet is the same micro-flow",
        [station(), own()],
        send(ether(IPv6(src="::ffff:" + book.v4[0], dst="::ffff:" + book.v4[1]), UDP(sport=1000, dport=2000))),
    )
    for number, layer in {
        6: TCP(sport=1, dport=2, flags="PA"),
        132: SCTP(sport=1, dport=2),
        17: UDP(sport=1, dport=2),
    }.items():
        book.add(
            f"protocol {number}",
            [station(), mark(*book.v4, number, 1, 2)],
            send(ether(IP(src=book.v4[0], dst=book.v4[1]), layer, PAYLOAD)),
        )
    book.add(
        "ICMP has ports of zero",
        [station(), mark(*book.v4, 1, 0, 0)],
        send(ether(IP(src=book.v4[0], dst=book.v4[1], proto=1), Raw(bytes(8)))),
    )
    book.add(
        "the first fragment has ports, later ones belong to no micro-flow",
        [station(), own(), mark(*book.v4, 17, 0, 0), select(4, 2, proto=exactly(17, 8))],
        send(ether(IP(src=book.v4[0], dst=book.v4[1], flags="MF"), UDP(sport=1000, dport=2000), PAYLOAD)),
        send(ether(IP(src=book.v4[0], dst=book.v4[1], flags="MF", frag=2, proto=17), PAYLOAD)),
    )
    return book


def dscp() -> Book:
    book = Book(6, "DSCP: trusted and not, plans, checksum, ECN")
    trusted = IngressPort(port=1, action=ConfigurePort(1, 0))

    def udp(tos: int, **more: Any) -> Packet:
        return ether(IP(src=book.v4[0], dst=book.v4[1], tos=tos, **more), UDP(sport=1000, dport=2000), PAYLOAD)

    def udp6(tos: int, label: int = 0xABCDE) -> Packet:
        return ether(IPv6(src=book.v6[0], dst=book.v6[1], tc=tos, fl=label), UDP(sport=1000, dport=2000), PAYLOAD)

    for value in range(0, 64, 3):
        book.add(
            f"DSCP {value} from a trusted and an untrusted port",
            [station(), trusted],
            send(udp(value << 2)),
            send(udp(value << 2), 3),
            send(udp6(value << 2)),
            send(udp6(value << 2), 3),
        )
    for ecn in range(4):
        book.add(
            f"ECN {ecn} is kept",
            [station(), select(9, 2)],
            *(send(make(tos | ecn)) for make in (udp, udp6) for tos in (0, 0xB8, 0xFC)),
        )
    book.add(
        "an entry counts more than a trusted DSCP",
        [station(), trusted, select(1, 1, dport=exactly(2000, 16))],
        send(udp(0xB8)),
    )
    ef = DscpToMark(dscp=46, action=ReadDscp(1, 3))
    book.add(
        "a DSCP of a plan, trusted and not",
        [station(), trusted, ef],
        send(udp(0xB8)),
        send(udp(0xB8), 2),
        send(udp6(0xBB)),
        send(udp(0x88)),
    )
    plan: list[Entity] = [
        MarkToDscp(slice=1, tc=3, action=SetDscp(46)),
        MarkToDscp(slice=1, tc=1, action=SetDscp(34)),
        MarkToDscp(slice=3, tc=0, action=SetDscp(8)),
        MarkToDscp(slice=0, tc=0, action=SetDscp(63)),
        MarkToDscp(slice=15, tc=3, action=SetDscp(0)),
    ]
    for slice_number, tc in ((1, 3), (1, 1), (3, 0), (0, 0), (15, 3), (2, 2)):
        book.add(
            f"slice {slice_number}, queue {tc} by a plan",
            [station(), *plan, select(slice_number, tc)],
            send(udp(0x01)),
            send(udp6(0xFF)),
        )
    book.add("a plan in both directions", [station(), trusted, ef, *plan], send(udp(0xB8)), send(udp(0xB9), 2))
    book.add("a trusted DSCP of no plan", [station(), trusted, ef, *plan], send(udp(0x94)), send(udp(0x00)))
    for checksum in (0x0000, 0x0001, 0x00FF, 0x7FFF, 0xFF00, 0xFFFE, 0xFFFF):
        book.add(
            f"a wrong checksum, {checksum:#06x}, stays as wrong as it was",
            [station(), select(5, 1)],
            send(udp(0x00, chksum=checksum)),
            send(udp(0xFF, chksum=checksum)),
        )
    for ident in (0x0000, 0x1F5B, 0x8A4C, 0xFFFF, 0x3A77, 0x9876):
        book.add(
            f"the checksum of a packet with identification {ident:#06x}",
            [station(), select(15, 3)],
            send(udp(0x00, id=ident)),
            send(udp(0xB9, id=ident, flags="DF")),
        )
    book.add(
        "a mark that is there already changes nothing",
        [station(), select(11, 2)],
        send(udp(11 << 4 | 2 << 2 | 1)),
        send(udp6(11 << 4 | 2 << 2 | 1)),
    )
    for label in (0, 0xFFFFF, 0x80000):
        book.add(
            f"flow label {label:#x} is kept", [station(), select(15, 3)], send(udp6(0, label)), send(udp6(0xFF, label))
        )
    return book
