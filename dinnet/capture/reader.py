"""A capture file as a stream of packet columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, Self

import numpy as np

from dinnet.capture.errors import CaptureError
from dinnet.capture.packet import FRAME_DTYPE, PACKET_DTYPE, Frames, Packets
from dinnet.capture.parse import FRAGMENT_DTYPE, FRAGMENT_SLOTS, parse_frames
from dinnet.capture.pcap import OTHER_FORMATS, PcapReader, link_name
from dinnet.capture.pcapng import PcapngReader
from dinnet.capture.source import ByteSource

Tunnel = Literal["inner", "outer"]

#: Packets in a batch: large enough to hide Python's own cost, small enough to stay in the L2 cache.
BATCH_PACKETS: Final = 1 << 14

_PCAP_MAGICS: Final = {
    b"\xa1\xb2\xc3\xd4",
    b"\xd4\xc3\xb2\xa1",
    b"\xa1\xb2\x3c\x4d",
    b"\x4d\x3c\xb2\xa1",
}


@dataclass
class CaptureStats:
    """What has been read so far."""

    format: str = ""  # "pcap", "pcap (nanoseconds)" or "pcapng", with the compression
    link_types: list[str] = field(default_factory=list)
    interfaces: int = 0
    frames: int = 0
    frame_bytes: int = 0  # on the wire
    flow_packets: int = 0
    not_ip: int = 0
    malformed: int = 0
    first_us: int | None = None  # earliest and latest time stamp, microseconds since 1970
    last_us: int | None = None
    cut: bool = False  # the file ends in the middle of a record

    def count(self, frames: int, not_ip: int, malformed: int, first_us: int, last_us: int, wire_bytes: int) -> None:
        """Count some frames, at least one; what follows their number is what `parse_frames` returns."""
        self.frames += frames
        self.frame_bytes += wire_bytes
        self.not_ip += not_ip
        self.malformed += malformed
        self.flow_packets += frames - not_ip - malformed
        self.first_us = first_us if self.first_us is None else min(first_us, self.first_us)
        self.last_us = last_us if self.last_us is None else max(last_us, self.last_us)


class Capture:
    """An open capture. Use `open_capture`; close it, or use it as a context manager.

    Attributes:
        stats: What has been read so far.
        warnings: One line for each thing that is odd and does not stop the reading.
    """

    def __init__(self, source: ByteSource, tunnel: Tunnel) -> None:
        self.stats = CaptureStats()
        self.warnings: list[str] = []
        self._source = source
        self._inner = tunnel == "inner"
        self._fragments = np.zeros(FRAGMENT_SLOTS, FRAGMENT_DTYPE)
        self._reader = _reader_for(source)
        self._describe()

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def size(self) -> int | None:
        """Size of the file in bytes; None for a pipe."""
        return self._source.size

    @property
    def position(self) -> int:
        """Bytes of the file read so far (compressed bytes of a compressed one)."""
        return self._source.position

    def batches(self, keep: int = 1) -> Iterator[Packets]:
        """Yield packets, PACKET_DTYPE (n,), n <= BATCH_PACKETS, in file order.

        Every frame is one packet; those that are not IP or are malformed have that `kind`. A batch
        stays valid until `keep` more have been asked for.

        Raises:
            CaptureError: The file is damaged, or holds packets of an unsupported link type. All packets
                before that place have been yielded.
        """
        rings = [np.zeros(BATCH_PACKETS, PACKET_DTYPE) for _ in range(keep)]
        frames = np.zeros(BATCH_PACKETS, FRAME_DTYPE)
        turn = 0
        filled = 0
        source, reader = self._source, self._reader
        while True:
            packets = rings[turn]
            count, status = reader.walk(source, frames, filled)
            if count > filled:
                self._parse(frames[filled:count], packets[filled:count])
                filled = count
            failure: CaptureError | None = None
            more = True
            if filled < BATCH_PACKETS:
                # The window may move now: no frame in it is needed any more.
                try:
                    more = reader.advance(source, status)
                except CaptureError as error:
                    failure = error
            if filled and (filled == BATCH_PACKETS or not more or failure):
                yield packets[:filled]
                filled = 0
                turn = (turn + 1) % keep
            if failure:
                try:
                    raise failure
                finally:
                    del failure  # else the frame and the error keep each other, and the buffers, alive
            if not more:
                break
        self._describe()
        if source.available or source.cut:
            self.stats.cut = True
            self.warnings.append(
                f"{self.name}: the capture is cut: its last record is not whole; "
                f"all {self.stats.frames} packets before it were read"
            )

    def _parse(self, frames: Frames, packets: Packets) -> None:
        parsed = parse_frames(self._source.data, frames, len(frames), self._inner, self._fragments, packets)
        self.stats.count(len(frames), *parsed)

    def _describe(self) -> None:
        compression = f", {self._source.compression}" if self._source.compression else ""
        self.stats.format = self._reader.format + compression
        self.stats.link_types = [link_name(link) for link in self._reader.link_types]
        self.stats.interfaces = self._reader.interfaces

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reader_for(source: ByteSource) -> PcapReader | PcapngReader:
    source.fill(4)
    if source.available == 0:
        raise CaptureError(f"{source.name} is empty: a capture has at least a file header")
    magic = source.data[source.start : source.start + min(4, source.available)].tobytes()
    if magic in _PCAP_MAGICS:
        return PcapReader(source)
    if magic == b"\x0a\x0d\x0d\x0a":
        return PcapngReader(source)
    if magic in OTHER_FORMATS:
        raise CaptureError(f"{source.name} is {OTHER_FORMATS[magic]}: convert it to pcap or pcapng (editcap does)")
    raise CaptureError(f"{source.name} is not a pcap or pcapng file: it starts with {magic.hex(' ')}")


def open_capture(source: str | Path | BinaryIO, *, tunnel: Tunnel = "inner") -> Capture:
    """Open a pcap or pcapng capture, plain, gzip or zstd.

    Args:
        source: A path, "-" for standard input, or an open binary stream that has `readinto`.
        tunnel: Which IP packet of a tunnelled one counts: "inner" looks into GRE, VXLAN, Geneve,
            GTP-U and IP-in-IP, "outer" does not.

    Raises:
        CaptureError: It cannot be opened, or is not a capture of a supported format and link type.
    """
    opened = ByteSource(source)
    try:
        return Capture(opened, tunnel)
    except BaseException:
        opened.close()
        raise
