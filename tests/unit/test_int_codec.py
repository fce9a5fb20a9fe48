"""INT-MD and telemetry reports between bytes and Python; the bytes are the specifications' own examples, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinnet.telemetry import metadata as md
from dinnet.telemetry.int_md import Header, Kind, NextProtocol, Shim, Stack
from dinnet.telemetry.metadata import Instruction, Metadata, TelemetryError
from dinnet.telemetry.report import SEQUENCES, DropReason, Individual, InnerType, Report, ReportType, Tlv, lost

#: INT 2.1, section 6.3: hop 2 has passed the packet last; node ids and occupancies are filled in here.
STACK_6_3 = bytes.fromhex(
    "18070006"  # type 1, NPT 2, length 7, protocol 6
    "20000206"  # version 2, hop ML 2, remaining hops 6
    "90000000"  # bits 0 and 3, domain 0
    "00000000"
    "00000002" "03000122"  # node 2, queue 3, 290
    "00000001" "01000005"
)  # fmt: skip
HOPS_6_3 = (Metadata(node_id=2, queue_id=3, queue_occupancy=290), Metadata(node_id=1, queue_id=1, queue_occupancy=5))


def test_example_6_3_of_int() -> None:
    stack, size = Stack.decode(STACK_6_3 + b"TCP")
    assert size == 32
    assert stack.shim == Shim(Kind.MD, NextProtocol.TRANSPORT, 7, 6)
    assert stack.header == Header(0x9000, 2, 6)
    assert stack.hops == HOPS_6_3
    assert Stack.of(stack.header, HOPS_6_3, 6).encode() == STACK_6_3


def test_flags_of_the_header() -> None:
    assert Header(0, 0, 0, discard=True).encode()[:2] == b"\x28\x00"
    assert Header(0, 0, 0, hops_exceeded=True).encode()[:2] == b"\x24\x00"
    assert Header(0, 0, 0, mtu_exceeded=True).encode()[:2] == b"\x22\x00"
    # Reserved bits are the sender's business.
    assert Header.decode(bytes.fromhex("21ffff07") + bytes(8)) == Header(0, 31, 7)


def test_words_of_instructions() -> None:
    assert [md.words(1 << 15 - bit) for bit in range(16)] == [1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert md.words(0xFFFF) == 19
    assert md.RESERVED == 0x007E


def test_what_a_hop_cannot_tell_is_all_ones() -> None:
    asked = Instruction.NODE_ID | Instruction.PORTS | Instruction.QUEUE | Instruction.EGRESS_TIME
    hop = Metadata(node_id=7, ingress_port=1, queue_id=5)
    encoded = bytes.fromhex("00000007 0001ffff 05ffffff ffffffffffffffff")
    assert hop.encode(asked) == encoded
    assert Metadata.decode(encoded, asked) == hop


def test_order_and_widths_of_all_metadata() -> None:
    hop = Metadata(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
    encoded = bytes.fromhex(
        "00000001 00020003 00000004 05000006 0000000000000007 0000000000000008"
        "00000009 0000000a 0000000b 0c00000d 0000000e"
    )
    assert hop.encode(0xFF81) == encoded
    assert Metadata.decode(encoded, 0xFF81) == hop


def test_stacks_read_as_an_array() -> None:
    layout = md.dtype(0x9000)
    rows = np.frombuffer(STACK_6_3[16:], layout)
    assert layout.itemsize == 8
    assert rows["node_id"].tolist() == [2, 1]
    assert rows["queue"].tolist() == [3 << 24 | 290, 1 << 24 | 5]
    assert md.dtype(0xFFFF).itemsize == 4 * md.words(0xFFFF)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (b"", "an INT shim has 4 bytes, not 0"),
        (STACK_6_3[:3], "an INT shim has 4 bytes, not 3"),
        (b"\x38" + STACK_6_3[1:], "INT type 3, not INT-MD"),
        (b"\x1c" + STACK_6_3[1:], "next protocol type 3 of an INT shim is not defined"),
        (b"\x18\x02" + STACK_6_3[2:], "2 words are too few"),
        (STACK_6_3[:-1], "the shim says 7 words, but 27 bytes follow it"),
        (STACK_6_3[:4] + b"\x10" + STACK_6_3[5:], "version 1 of INT-MD is not known"),
        (b"\x18\x06" + STACK_6_3[2:], "12 bytes of metadata are no multiple of 2 words"),
        (STACK_6_3[:6] + b"\x01" + STACK_6_3[7:], "1 words a hop, but 0x9000 asks for 2"),
        (STACK_6_3[:6] + b"\x03" + STACK_6_3[7:], "3 words a hop, but 0x9000 asks for 2"),
        (STACK_6_3[:6] + b"\x00\x00\x00\x00" + STACK_6_3[10:], "of hops that add none"),
    ],
)
def test_damaged_stacks(damage: bytes, what: str) -> None:
    with pytest.raises(TelemetryError, match=what):
        Stack.decode(damage)


def test_values_that_have_no_encoding() -> None:
    with pytest.raises(TelemetryError, match="queue_id 255 does not fit 8 bits"):
        Metadata(queue_id=255).encode(Instruction.QUEUE)
    with pytest.raises(TelemetryError, match="original 256"):
        Shim(1, 2, 3, 256).encode()
    with pytest.raises(TelemetryError, match="the shim says 4 words where there are 12 bytes"):
        Stack(Shim(1, 2, 4, 6), Header(0, 0, 1)).encode()


def test_metadata_of_a_domain_is_skipped() -> None:
    """A hop of 3 words of which the bitmap explains 2; the source alone added one more."""
    raw = bytes.fromhex("18070006 20000306 80010042 80000000 00000009 dddddddd ffffffff eeeeeeee")
    stack, _ = Stack.decode(raw)
    assert stack.header.domain == 0x42
    assert stack.hops == (Metadata(node_id=9),)
    assert stack.source_only == bytes.fromhex("eeeeeeee")


IP_TCP = bytes(range(0x45, 0x45 + 40))
#: Telemetry report 2.0, section 4.1, with node 3, sequence number 2^22 - 1, ports 1 and 2, queue 4, 17.
REPORT_4_1 = bytes.fromhex("203fffff 00000003 140e0220 50000000 00000000 00010002 04000011") + IP_TCP
#: Section 4.3: the packet of INT's section 6.3 in the report of its sink.
IP, UDP, TCP = bytes(20), bytes.fromhex("c00012b9002c0000"), bytes(20)
REPORT_4_3 = (
    bytes.fromhex("20000001 00000003 14170120 10000000 00000000 02000009") + IP + UDP + STACK_6_3 + TCP
)  # fmt: skip


def test_example_4_1_of_reports() -> None:
    report = Report.decode(REPORT_4_1)
    metadata = Metadata(ingress_port=1, egress_port=2, queue_id=4, queue_occupancy=17)
    assert report == Report(3, SEQUENCES - 1, (Individual(4, IP_TCP, tracked=True, present=0x5000, metadata=metadata),))
    assert report.encode() == REPORT_4_1


def test_example_4_3_of_reports() -> None:
    report = Report.decode(REPORT_4_3)
    (one,) = report.reports
    assert (report.node_id, report.sequence, report.hardware_id) == (3, 1, 0)
    assert one.metadata == Metadata(queue_id=2, queue_occupancy=9)
    assert (one.report_type, one.inner_type, one.tracked, one.dropped) == (ReportType.INT, InnerType.IPV4, True, False)
    stack, size = Stack.decode(one.inner[28:])
    assert stack.hops == HOPS_6_3
    assert one.inner[28 + size :] == TCP
    assert report.encode() == REPORT_4_3


def test_example_4_2_of_reports() -> None:
    """Domain-specific metadata and TLVs: 1 word of extension data, then the packet."""
    tlvs = bytes.fromhex("00010007 cafecafe 200a0000") + IP_TCP
    length = 2 + 3 + len(tlvs) // 4
    raw = bytes.fromhex(f"20000000 00000003 11{length:02x}0320 50000042 80000001 00010002 04000011 dddddddd") + tlvs
    (one,) = Report.decode(raw).reports
    assert (one.domain, one.domain_bits, one.domain_status) == (0x42, 0x8000, 1)
    assert one.domain_metadata == bytes.fromhex("dddddddd")
    assert one.tlvs() == (Tlv(0, 7, bytes.fromhex("cafecafe")), Tlv(2, 0, IP_TCP))
    assert Report.decode(raw).encode() == raw


def test_reports_of_one_datagram_and_a_long_one_at_its_end() -> None:
    short = Individual(InnerType.IPV4, bytes(20), dropped=True, present=0x4001, metadata=Metadata(ingress_port=1),
                       drop=DropReason(3, 5))  # fmt: skip
    long = Individual(InnerType.IPV6, bytes(4 * 300), ReportType.INNER_ONLY)
    report = Report(1, 0, (short, short, long), hardware_id=63)
    raw = report.encode()
    assert raw[:4] == bytes.fromhex("2fc00000")
    assert raw[8:12] == bytes.fromhex("14090280")
    assert raw[20:28] == bytes.fromhex("0001ffff 03050000")
    assert Report.decode(raw) == report
    with pytest.raises(TelemetryError, match="must be the last"):
        Report(1, 0, (long, short)).encode()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (REPORT_4_1[:7], "7 bytes are too few for a telemetry report"),
        (b"\x10" + REPORT_4_1[1:], "version 1 of telemetry reports is not known"),
        (REPORT_4_1[:8], "without a report"),
        (REPORT_4_1[:10], "2 bytes are too few"),
        (REPORT_4_1[:-4], "a report of 14 words where 52 bytes are left"),
        (REPORT_4_1 + b"\0\0", "2 bytes are too few"),
        (REPORT_4_1[:8] + b"\x24" + REPORT_4_1[9:], "report type 2 is not known"),
        (REPORT_4_1[:8] + b"\x17" + REPORT_4_1[9:], "inner type 7 is not known"),
        (REPORT_4_1[:10] + b"\x0d" + REPORT_4_1[11:], "13 words of metadata in a report of 14 words"),
        (REPORT_4_1[:10] + b"\x01" + REPORT_4_1[11:], "1 words of metadata, but 0x5000 asks for 2"),
    ],
)
def test_damaged_reports(damage: bytes, what: str) -> None:
    with pytest.raises(TelemetryError, match=what):
        Report.decode(damage)


def test_lost_reports_are_counted_across_the_wrap() -> None:
    assert lost(5, 6) == 0
    assert lost(5, 9) == 3
    assert lost(SEQUENCES - 1, 0) == 0
    assert lost(SEQUENCES - 2, 1) == 2


def values(width: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, 2**width - 2)


WIDTHS = [32, 16, 16, 32, 8, 24, 64, 64, 32, 32, 32, 8, 24, 32]
FIELDS = [
    (0x8000, (0,)), (0x4000, (1, 2)), (0x2000, (3,)), (0x1000, (4, 5)), (0x0800, (6,)), (0x0400, (7,)),
    (0x0200, (8, 9)), (0x0100, (10,)), (0x0080, (11, 12)), (0x0001, (13,)),
]  # fmt: skip
any_metadata = st.tuples(*map(values, WIDTHS))


def asked_for(given_values: tuple[int | None, ...], bits: int) -> Metadata:
    kept = {place for bit, places in FIELDS if bits & bit for place in places}
    return Metadata(*(value if place in kept else None for place, value in enumerate(given_values)))


@given(
    bits=st.integers(0, 0xFFFF), hops=st.lists(any_metadata, max_size=8), remaining=st.integers(0, 255),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()), original=st.integers(0, 255),
)  # fmt: skip
def test_stacks_come_back(
    bits: int, hops: list[tuple[int | None, ...]], remaining: int, flags: tuple[bool, bool, bool], original: int
) -> None:
    length = md.words(bits)
    kept = tuple(asked_for(hop, bits) for hop in hops) if length else ()
    stack = Stack.of(Header(bits, length, remaining, *flags), kept, original)
    raw = stack.encode()
    assert len(raw) == 16 + 4 * length * len(kept)
    assert Stack.decode(raw + b"rest") == (stack, len(raw))


@given(
    bits=st.integers(0, 0xFFFF).map(lambda bits: bits & ~0x8000), hop=any_metadata, sequence=st.integers(0, 2**22 - 1),
    node=st.integers(0, 2**32 - 1), hardware=st.integers(0, 63), inner=st.binary(max_size=400),
    flags=st.tuples(*[st.booleans()] * 4), count=st.integers(1, 3),
)  # fmt: skip
def test_reports_come_back(
    bits: int, hop: tuple[int | None, ...], sequence: int, node: int, hardware: int, inner: bytes,
    flags: tuple[bool, bool, bool, bool], count: int,
) -> None:  # fmt: skip
    drop = DropReason(1, 2) if bits & 1 else None
    metadata = asked_for(hop, bits & ~1)
    one = Individual(4, inner + bytes(-len(inner) % 4), ReportType.INT, *flags, bits, metadata, drop)
    report = Report(node, sequence, (one,) * count, hardware)
    assert Report.decode(report.encode()) == report


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (b"", b"\x18", STACK_6_3[:12]):
        try:
            stack, size = Stack.decode(start + data)
        except TelemetryError:
            continue
        assert size <= len(start + data)
        assert stack.shim.length_words * 4 + 4 == size
        assert len(stack.hops) * stack.header.hop_words <= stack.shim.length_words
    for start in (b"", b"\x20\0\0\0\0\0\0\0", REPORT_4_1[:12]):
        try:
            report = Report.decode(start + data)
            [one.tlvs() for one in report.reports]
        except TelemetryError:
            continue
        again = Report.decode(report.encode())
        assert again == report


def test_rows_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Shim(1, 2, 3, 4).kind = 2  # type: ignore[misc]
