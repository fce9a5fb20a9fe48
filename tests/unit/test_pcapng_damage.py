"""A damaged pcapng block is told with its place and what is wrong with it, after all packets before it."""

from __future__ import annotations

import io
import struct

import pytest
from capturekit import block, epb, ethernet, idb, ip, obsolete_pb, shb, spb, udp

from dinnet.capture import CaptureError, open_capture

PACKET = ethernet(ip(udp(1000, 2000, bytes(60)), 17, "10.0.0.1", "10.0.0.2"))
INTERFACE, OBSOLETE, SIMPLE, ENHANCED = 1, 2, 3, 6


def bare(order: str, kind: int, length: int, body: bytes = bytes(64)) -> bytes:
    """A block whose length field says `length`, whatever follows."""
    return struct.pack(order + "II", kind, length) + body


def altered(order: str, whole: bytes, at: int, value: int) -> bytes:
    """The block with another number at byte `at`."""
    return whole[:at] + struct.pack(order + "I", value) + whole[at + 4 :]


def damages(order: str) -> dict[str, tuple[bytes, str]]:
    enhanced, simple = epb(order, 0, 0, PACKET), spb(order, PACKET)
    size = len(enhanced)
    short = r"its length {} is too short for its type, which takes {} bytes at least"
    return {
        "enhanced 12": (bare(order, ENHANCED, 12), short.format(12, 32)),
        "enhanced 28": (bare(order, ENHANCED, 28), short.format(28, 32)),
        "simple 12": (bare(order, SIMPLE, 12), short.format(12, 16)),
        "obsolete 16": (bare(order, OBSOLETE, 16), short.format(16, 32)),
        "length 0": (bare(order, ENHANCED, 0), "its length is 0"),
        "length 8": (bare(order, 0xBAD, 8), "its length is 8"),
        "length 33": (bare(order, ENHANCED, 33), "its length is 33"),
        "huge": (bare(order, ENHANCED, (1 << 24) + 4), "its length is 16777220: no capture tool writes a packet that"),
        "interface 1": (epb(order, 1, 0, PACKET), "its interface 1 has no description"),
        "obsolete interface 7": (obsolete_pb(order, 7, 0, PACKET), "its interface 7 has no description"),
        "too long": (altered(order, enhanced, 20, len(PACKET) + 4), f"its packet is longer than the block's {size}"),
        "packet 4 GiB": (altered(order, enhanced, 20, 0xFFFFFFFF), f"its packet is longer than the block's {size}"),
        "interface description 12": (block(order, INTERFACE, b""), "its length 12 is too short"),
        "section header 12": (bare(order, 0x0A0D0D0A, 12, struct.pack(order + "I", 0x1A2B3C4D) + bytes(64)),
                              "its length 12 is too short"),
        "section without byte order": (bare(order, 0x0A0D0D0A, 28), "damaged section header"),
        "simple with a wire length": (altered(order, simple, 8, 0xFFFFFFFF), ""),
    }  # fmt: skip


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", damages("<"))
def test_the_reason_is_told(name: str, order: str) -> None:
    damaged, reason = damages(order)[name]
    before = shb(order) + idb(order) + epb(order, 0, 1, PACKET) * 3
    with open_capture(io.BytesIO(before + damaged)) as capture:
        if not reason:  # a length on the wire may be anything
            assert sum(len(packets) for packets in capture.batches()) == 4
            return
        with pytest.raises(CaptureError) as failure:
            list(capture.batches())
        assert capture.stats.frames == 3
    message = str(failure.value)
    assert reason in message
    assert f"byte {len(before)}" in message
    assert "\n" not in message


def test_a_simple_packet_without_any_interface() -> None:
    capture = open_capture(io.BytesIO(shb() + spb("<", PACKET)))
    with capture, pytest.raises(CaptureError, match="its interface 0 has no description"):
        list(capture.batches())
