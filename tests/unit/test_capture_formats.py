"""Capture files: every format variant gives the right packets and times, every broken one a defined outcome."""

from __future__ import annotations

import gzip
import io
import re
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import capturekit as kit
import pytest
import zstandard

from dinnet.capture import CaptureError, open_capture
from dinnet.errors import DinnetError

T0 = kit.T0


def packet(n: int = 0, payload: bytes = b"hello") -> bytes:
    """A raw IPv4 TCP packet told apart from others by its source port."""
    return kit.ipv4(kit.tcp(1000 + n, 80, kit.ACK | kit.PSH, payload), kit.TCP)


def frame(n: int = 0) -> bytes:
    return kit.ethernet(packet(n))


def three() -> list[kit.Frame]:
    return [kit.at(us, frame(n)) for n, us in enumerate((0, 1500, 2_000_001))]


def check_three(reading: kit.Reading) -> None:
    assert reading.packets["time_us"].tolist() == [T0, T0 + 1500, T0 + 2_000_001]
    assert reading.packets["sport"].tolist() == [1000, 1001, 1002]
    assert reading.packets["payload_bytes"].tolist() == [5, 5, 5]
    assert reading.stats.frames == 3
    assert reading.stats.frame_bytes == 3 * (14 + 20 + 20 + 5)
    assert reading.stats.flow_packets == 3
    assert reading.stats.first_us == T0
    assert reading.stats.last_us == T0 + 2_000_001


# --- pcap -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("magic", [kit.MICRO, kit.NANO], ids=["micro", "nano"])
def test_four_pcap_magics(magic: int, order: str) -> None:
    reading = kit.read(kit.pcap(three(), magic=magic, order=order))
    check_three(reading)
    assert reading.warnings == []
    assert not reading.stats.cut
    assert len(reading.stats.link_types) == 1


def test_nanoseconds_are_floored_to_microseconds() -> None:
    frames = [kit.Frame(frame(), T0 * 1000 + 1999), kit.Frame(frame(1), T0 * 1000 + 2000)]
    assert kit.read(kit.pcap(frames, magic=kit.NANO)).packets["time_us"].tolist() == [T0 + 1, T0 + 2]


def test_link_type_upper_bits_hold_the_checksum_length_and_are_not_the_link_type() -> None:
    # draft-ietf-opsawg-pcap: the upper 16 bits of the last header word are FCS length and flags.
    reading = kit.read(kit.pcap(three(), link=0x4400_0001))
    check_three(reading)


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_modified_pcap_is_refused_by_name(order: str) -> None:
    with pytest.raises(CaptureError, match=r"(?i)modified|kuznetzov"):
        kit.read(kit.pcap(three(), magic=kit.MODIFIED, order=order))


def test_snoop_is_refused_by_name() -> None:
    with pytest.raises(CaptureError, match=r"(?i)snoop"):
        kit.read(kit.snoop(three()))


def test_snap_cut_packet_counts_with_its_true_length() -> None:
    whole = kit.ethernet(kit.ipv4(kit.tcp(1000, 80, kit.ACK, bytes(1400)), kit.TCP))
    reading = kit.read(kit.pcap([kit.at(0, whole[:64], len(whole))], snaplen=64))
    assert reading.stats.frame_bytes == 14 + 20 + 20 + 1400
    assert reading.packets["ip_bytes"].tolist() == [1440]
    assert reading.packets["payload_bytes"].tolist() == [1400]
    assert reading.tuples() == [("10.0.0.1", 1000, "10.0.0.2", 80, 6)]
    assert not reading.stats.cut


def test_timestamps_out_of_order_are_kept_as_captured() -> None:
    reading = kit.read(kit.pcap([kit.at(500, frame()), kit.at(0, frame(1)), kit.at(200, frame(2))]))
    assert reading.packets["time_us"].tolist() == [T0 + 500, T0, T0 + 200]


def test_seconds_field_is_unsigned() -> None:
    after_2038 = 3_000_000_000_000_000_000  # nanoseconds: January 2065
    assert kit.read(kit.pcap([kit.Frame(frame(), after_2038)])).packets["time_us"].tolist() == [3_000_000_000_000_000]


# --- broken and short files -------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 8, 15], ids="header+{}".format)
def test_last_packet_cut_inside_its_header(kept: int) -> None:
    data = kit.pcap(three()) + kit.pcap_record(kit.at(3_000_000, frame(3)))[:kept]
    reading = kit.read(data)
    check_three(reading)
    assert reading.stats.cut
    assert len(reading.warnings) == 1


@pytest.mark.parametrize("lost", [1, 20, 58])
def test_last_packet_cut_inside_its_data(lost: int) -> None:
    data = kit.pcap(three()) + kit.pcap_record(kit.at(3_000_000, frame(3)))[:-lost]
    reading = kit.read(data)
    check_three(reading)
    assert reading.stats.cut
    assert len(reading.warnings) == 1
    assert "\n" not in reading.warnings[0]


def test_whole_file_has_no_warning_and_is_not_cut() -> None:
    reading = kit.read(kit.pcap(three()))
    assert reading.warnings == []
    assert not reading.stats.cut


def test_zero_length_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.write_bytes(b"")
    with pytest.raises(CaptureError, match=r"empty\.pcap") as caught:
        kit.read(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("data", [kit.pcap([]), kit.shb(), kit.shb() + kit.idb()], ids=["pcap", "shb", "shb+idb"])
def test_only_a_header_is_an_empty_capture(data: bytes) -> None:
    reading = kit.read(data)
    assert reading.stats.frames == 0
    assert len(reading.all) == 0
    assert reading.warnings == []
    assert not reading.stats.cut


@pytest.mark.parametrize("size", [1, 4, 12, 23])
def test_cut_file_header_is_an_error(size: int) -> None:
    with pytest.raises(CaptureError):
        kit.read(kit.pcap_header()[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"This is a text file, not a capture.\n" * 40,
        bytes(4096),
        b"\xff" * 4096,
        b"\x1f\x8b" + b"garbage" * 20,
        b"\x28\xb5\x2f\xfd" + b"garbage" * 20,
        gzip.compress(b"text, compressed" * 100),
        bytes.fromhex("0a0d0d0a") + b"\x11" * 100,
    ],
    ids=["text", "zeros", "ones", "bad gzip", "bad zstd", "gzip of text", "bad section"],
)
def test_garbage_is_an_error_in_one_line_naming_the_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "thing.pcap"
    path.write_bytes(data)
    with pytest.raises(CaptureError, match=r"thing\.pcap") as caught:
        kit.read(path)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match=r"absent\.pcap"):
        kit.read(tmp_path / "absent.pcap")
    with pytest.raises(DinnetError):
        kit.read(tmp_path)


def test_impossible_packet_length_ends_the_file_without_taking_memory() -> None:
    bad = bytearray(kit.pcap_record(kit.at(3_000_000, frame(3))))
    bad[8:12] = (0xFFFF_FFF0).to_bytes(4, "little")
    data = kit.pcap(three()) + bytes(bad) + bytes(1000)
    try:
        reading = kit.read(data)
    except CaptureError as error:
        assert "\n" not in str(error)  # refused: also a defined outcome
    else:
        check_three(reading)
        assert len(reading.warnings) == 1


# --- compression and streams ------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_compressed_files_are_known_by_their_content(tmp_path: Path, compress, kind: str) -> None:  # type: ignore[no-untyped-def]
    plain = kit.pcap(three())
    if kind == "pcapng":
        plain = kit.shb() + kit.idb() + b"".join(kit.epb("<", 0, f.ns // 1000, f.data) for f in three())
    path = tmp_path / "capture"  # no suffix: the content decides
    path.write_bytes(compress(plain))
    check_three(kit.read(path))


def test_gzip_of_several_members_is_read_to_the_end() -> None:
    data = kit.pcap(three())
    check_three(kit.read(gzip.compress(data[:50]) + gzip.compress(data[50:])))


def test_zstd_of_several_frames_is_read_to_the_end() -> None:
    data = kit.pcap(three())
    squeeze = zstandard.ZstdCompressor().compress
    check_three(kit.read(squeeze(data[:50]) + squeeze(data[50:])))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_cut_compressed_file_gives_its_whole_packets_and_one_warning(compression: str) -> None:
    # Random payloads do not compress, so that most packets lie whole before the cut.
    import random

    noise = random.Random(7)
    frames = [kit.at(n, kit.ethernet(packet(n, noise.randbytes(1000)))) for n in range(200)]
    plain = kit.pcap(frames)
    if compression == "gzip":
        packed = gzip.compress(plain, 1)
    else:
        out = io.BytesIO()
        with zstandard.ZstdCompressor(level=1).stream_writer(out, closefd=False) as writer:
            for start in range(0, len(plain), 8192):  # flushed blocks, as a recorder writes them
                writer.write(plain[start : start + 8192])
                writer.flush(zstandard.FLUSH_BLOCK)
        packed = out.getvalue()
    reading = kit.read(packed[: len(packed) // 2])
    assert reading.stats.cut
    assert len(reading.warnings) == 1
    assert 60 <= len(reading.packets) <= 100  # half of 200, less what the decompressor holds back
    assert reading.packets["sport"].tolist() == list(range(1000, 1000 + len(reading.packets)))


class Pipe(io.RawIOBase):
    """A stream that cannot seek and gives a few bytes at a time, as a pipe does."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = io.BytesIO(data)
        self._step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def,override]
        chunk = self._data.read(min(len(buffer), self._step))
        buffer[: len(chunk)] = chunk
        return len(chunk)


@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_stream_with_short_reads(step: int, pack) -> None:  # type: ignore[no-untyped-def]
    check_three(kit.read(Pipe(pack(kit.pcap(three())), step)))


SCRIPT = """
from dinnet.capture import open_capture
with open_capture("-") as capture:
    total = sum(len(batch) for batch in capture.batches())
    assert total == capture.stats.frames == 3, capture.stats
"""


def test_standard_input() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=kit.pcap(three()), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_file_larger_than_any_batch_is_read_whole_and_in_order(tmp_path: Path) -> None:
    count = 150_000
    data = bytearray(kit.pcap_header())
    for n in range(count):
        data += kit.pcap_record(kit.at(n, kit.ethernet(kit.ipv4(kit.udp(n % 60_000, n // 60_000, b"x"), kit.UDP))))
    path = tmp_path / "many.pcap"
    path.write_bytes(data)
    reading = kit.read(path)
    numbers = reading.packets["dport"].astype(int) * 60_000 + reading.packets["sport"]
    assert numbers.tolist() == list(range(count))
    assert reading.packets["time_us"].tolist() == list(range(T0, T0 + count))


def test_frames_of_the_largest_allowed_size() -> None:
    big = kit.ethernet(kit.ipv4(kit.udp(1, 2, bytes(65_507)), kit.UDP))
    reading = kit.read(kit.pcap([kit.at(n, big) for n in range(40)]))
    assert reading.packets["ip_bytes"].tolist() == [65_535] * 40


# --- pcapng -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_pcapng_in_both_byte_orders(order: str) -> None:
    data = kit.shb(order) + kit.idb(order) + b"".join(kit.epb(order, 0, f.ns // 1000, f.data) for f in three())
    reading = kit.read(data)
    check_three(reading)
    assert reading.stats.interfaces == 1


def test_time_resolution_is_each_interface_s_own() -> None:
    resolutions = [None, 3, 6, 7, 9, 0]
    data = kit.shb() + b"".join(kit.idb(tsresol=r) for r in resolutions)
    for n, resolution in enumerate(resolutions):
        exponent = 6 if resolution is None else resolution
        data += kit.epb("<", n, (T0 + 7_000_000) * 10**exponent // 10**6, frame(n))
    times = kit.read(data).packets["time_us"].tolist()
    assert times == [T0 + 7_000_000] * 6


@pytest.mark.parametrize("power", [0, 1, 10, 16, 20, 24, 30, 32])
def test_base_two_time_resolution(power: int) -> None:
    ticks = (T0 // 1_000_000 << power) + ((1 << power) * 3 // 7)
    data = kit.shb() + kit.idb(tsresol=0x80 | power) + kit.epb("<", 0, ticks, frame())
    want = Fraction(ticks, 1 << power) * 1_000_000
    assert kit.read(data).packets["time_us"].tolist() == [want.numerator // want.denominator]


@pytest.mark.parametrize("resolution", [7, 8, 9, 10])
def test_finer_than_a_microsecond_is_floored(resolution: int) -> None:
    scale = 10 ** (resolution - 6)
    data = kit.shb() + kit.idb(tsresol=resolution) + kit.epb("<", 0, T0 * scale + scale - 1, frame())
    assert kit.read(data).packets["time_us"].tolist() == [T0]


@pytest.mark.parametrize("offset", [0, 3600, -3600, 1_600_000_000])
def test_time_offset_is_added_in_seconds(offset: int) -> None:
    data = kit.shb() + kit.idb(tsoffset=offset) + kit.idb() + kit.epb("<", 0, 100_000_000_000_001, frame())
    data += kit.epb("<", 1, 100_000_000_000_001, frame(1))
    want = [100_000_000_000_001 + offset * 1_000_000, 100_000_000_000_001]
    assert kit.read(data).packets["time_us"].tolist() == want


def test_time_offset_counts_seconds_at_any_resolution_and_byte_order() -> None:
    data = kit.shb(">") + kit.idb(">", tsresol=9, tsoffset=1000) + kit.epb(">", 0, 5_000_001_000, frame())
    assert kit.read(data).packets["time_us"].tolist() == [1_005_000_001]


def test_mixed_link_types_in_one_file() -> None:
    data = kit.shb() + kit.idb(link=1) + kit.idb(link=101, tsresol=9) + kit.idb(link=113) + kit.idb(link=276)
    data += kit.epb("<", 3, T0, kit.sll2(packet(3)))
    data += kit.epb("<", 1, T0 * 1000, packet(1))
    data += kit.epb("<", 0, T0, frame(0))
    data += kit.epb("<", 2, T0, kit.sll(packet(2)))
    reading = kit.read(data)
    assert reading.packets["sport"].tolist() == [1003, 1001, 1000, 1002]
    assert reading.packets["time_us"].tolist() == [T0] * 4
    assert len(reading.stats.link_types) == reading.stats.interfaces == 4


def test_sections_of_different_byte_order_start_their_interfaces_afresh() -> None:
    data = kit.shb("<") + kit.idb("<", link=1) + kit.epb("<", 0, T0, frame(0))
    data += kit.shb(">") + kit.idb(">", link=101, tsresol=9) + kit.epb(">", 0, (T0 + 1) * 1000, packet(1))
    data += kit.shb("<") + kit.idb("<", link=113) + kit.epb("<", 0, T0 + 2, kit.sll(packet(2)))
    reading = kit.read(data)
    assert reading.packets["sport"].tolist() == [1000, 1001, 1002]
    assert reading.packets["time_us"].tolist() == [T0, T0 + 1, T0 + 2]


def test_section_with_a_stated_length_and_options() -> None:
    inner = kit.idb() + kit.epb("<", 0, T0, frame(0), extra=[(1, b"a comment"), (2, bytes(4))])
    data = kit.shb("<", len(inner), [(1, b"made by hand"), (4, b"test")]) + inner
    data += kit.shb(">") + kit.idb(">") + kit.epb(">", 0, T0 + 1, frame(1))
    assert kit.read(data).packets["sport"].tolist() == [1000, 1001]


def test_interface_described_after_the_first_packets() -> None:
    data = kit.shb() + kit.idb() + kit.epb("<", 0, T0, frame(0)) + kit.idb(link=101)
    data += kit.epb("<", 1, T0 + 1, packet(1)) + kit.epb("<", 0, T0 + 2, frame(2))
    assert kit.read(data).packets["sport"].tolist() == [1000, 1001, 1002]


def test_blocks_that_are_no_packets_are_skipped() -> None:
    data = kit.shb() + kit.nrb("<") + kit.idb() + kit.block("<", 0x0BAD, b"custom") + kit.block("<", 0x80000001, b"")
    data += kit.epb("<", 0, T0, frame(0)) + kit.isb("<", 0) + kit.block("<", 10, bytes(100))
    data += kit.epb("<", 0, T0 + 1, frame(1)) + kit.nrb("<") + kit.isb("<", 0)
    reading = kit.read(data)
    assert reading.packets["sport"].tolist() == [1000, 1001]
    assert reading.stats.frames == 2
    assert reading.warnings == []


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_obsolete_packet_block(order: str) -> None:
    whole = frame(1)
    data = kit.shb(order) + kit.idb(order) + kit.idb(order, tsresol=9)
    data += kit.obsolete_pb(order, 1, T0 * 1000, frame(0)) + kit.obsolete_pb(order, 0, T0 + 1, whole[:56], len(whole))
    reading = kit.read(data)
    assert reading.packets["sport"].tolist() == [1000, 1001]
    assert reading.packets["time_us"].tolist() == [T0, T0 + 1]
    assert reading.packets["payload_bytes"].tolist() == [5, 5]


def test_simple_packet_block_uses_interface_zero_and_its_snap_length() -> None:
    long = kit.ethernet(packet(1, bytes(500)))
    data = (
        kit.shb()
        + kit.idb(snaplen=64)
        + kit.idb(link=113)
        + kit.spb("<", frame(0))
        + kit.spb("<", long[:64], len(long))
    )
    reading = kit.read(data)
    assert reading.packets["sport"].tolist() == [1000, 1001]
    assert reading.packets["payload_bytes"].tolist() == [5, 500]
    assert reading.stats.frame_bytes == len(frame(0)) + len(long)


def test_simple_packet_block_padding_is_not_packet_data() -> None:
    odd = kit.ethernet(packet(0, b"x"))
    assert len(odd) % 4 == 3
    reading = kit.read(kit.shb() + kit.idb() + kit.spb("<", odd) + kit.spb("<", frame(1)))
    assert reading.packets["payload_bytes"].tolist() == [1, 5]


def test_enhanced_packet_block_keeps_the_wire_length() -> None:
    long = kit.ethernet(packet(0, bytes(1400)))
    reading = kit.read(kit.shb() + kit.idb() + kit.epb("<", 0, T0, long[:60], wire=len(long)))
    assert reading.packets["payload_bytes"].tolist() == [1400]
    assert reading.stats.frame_bytes == len(long)


@pytest.mark.parametrize("lost", [1, 4, 30, 60, 90])
def test_pcapng_cut_inside_the_last_block(lost: int) -> None:
    data = kit.shb() + kit.idb() + b"".join(kit.epb("<", 0, f.ns // 1000, f.data) for f in three())
    data += kit.epb("<", 0, T0 + 3_000_000, frame(3))[:-lost]
    reading = kit.read(data)
    assert reading.stats.cut
    assert len(reading.warnings) == 1
    assert reading.packets["sport"].tolist()[:3] == [1000, 1001, 1002]
    # With only the closing length lost the packet itself is whole: both readings are fair.
    assert reading.stats.frames == 3 or (lost <= 4 and reading.stats.frames == 4)


def test_packet_of_an_undescribed_interface_is_reported_not_guessed() -> None:
    data = kit.shb() + kit.idb() + kit.epb("<", 0, T0, frame(0)) + kit.epb("<", 5, T0, frame(1))
    try:
        reading = kit.read(data)
    except CaptureError as error:
        assert re.search("interface|damaged block at byte", str(error))
    else:
        assert reading.packets["sport"].tolist() == [1000]
        assert len(reading.warnings) == 1


@pytest.mark.parametrize("size", [0, 8, 11, 13, 0xFFFF_FFF0])
def test_impossible_block_length_ends_the_file(size: int) -> None:
    data = kit.shb() + kit.idb() + kit.epb("<", 0, T0, frame(0))
    data += b"\x06\0\0\0" + size.to_bytes(4, "little") + bytes(200)
    try:
        reading = kit.read(data)
    except CaptureError as error:
        assert "\n" not in str(error)
    else:
        assert reading.packets["sport"].tolist() == [1000]
        assert len(reading.warnings) == 1


# --- link types that are not read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "name"),
    [(105, r"105|802[._]?11"), (127, r"127|(?i:radiotap)"), (195, r"195|802[._]?15[._]?4"), (147, r"147|USER0")],
)
def test_other_link_types_are_refused_by_name(link: int, name: str) -> None:
    with pytest.raises(CaptureError, match=name) as caught:
        kit.read(kit.pcap(three(), link=link))
    assert "\n" not in str(caught.value)


def test_other_link_type_in_pcapng_is_refused_by_name() -> None:
    with pytest.raises(CaptureError, match=r"127|(?i:radiotap)"):
        kit.read(kit.shb() + kit.idb(link=127) + kit.epb("<", 0, T0, frame(0)))


def test_a_file_cut_inside_a_block_that_is_no_packet_is_told(tmp_path: Path) -> None:
    block = struct.pack("<II", 0xBAD, 412) + bytes(400) + struct.pack("<I", 412)
    header = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    for kept, warnings in ((412, 0), (200, 1), (9, 1)):
        path = tmp_path / f"{kept}.pcapng"
        path.write_bytes(header + block[:kept])
        with open_capture(path) as capture:
            assert list(capture.batches()) == []
            assert len(capture.warnings) == warnings
