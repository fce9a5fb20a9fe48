"""A live interface as a stream of packet columns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dinnet.capture.errors import CaptureError
from dinnet.capture.packet import FRAME_DTYPE, PACKET_DTYPE, Frames, Packets
from dinnet.capture.parse import FRAGMENT_DTYPE, FRAGMENT_SLOTS, LINK_TYPES, parse_frames
from dinnet.capture.reader import CaptureStats, Tunnel
from dinnet.capture.ring import PacketRing, walk_block
from dinnet.capture.writer import PcapngWriter, encode_packets
from dinnet.errors import DinnetError

#: Most bytes of a packet that are kept; what capture tools use as "all of it".
SNAPLEN: Final = 262_144
RING_BYTES: Final = 32 << 20
#: Each of these is handed over when it is full or `_RETIRE_MS` old, whichever comes first. So the
#: time that the ring bridges at low rates is ring / block * age: 6 seconds.
_BLOCK_BYTES: Final = 256 << 10
_RETIRE_MS: Final = 50

_NO_PACKETS: Final = np.zeros(0, PACKET_DTYPE)


class LiveCapture:
    """Packets of an interface from now on. Close it, or use it as a context manager.

    Args:
        interface: Name of the interface. On loopback, where each packet passes twice, it counts once.
        netns: Network namespace of the interface: a name as in `ip netns`, or a path.
        snaplen: Most bytes of a packet to keep; its true length is counted anyway.
        ring_bytes: Memory for packets that wait to be read; what does not fit is dropped and counted.
        block_bytes: Memory that the kernel hands over at a time: a power of two.
        promiscuous: Also see what is sent to other hosts.
        tunnel: As in `open_capture`.
        write: A pcapng file to keep the packets in.

    Raises:
        DinnetError: The interface cannot be captured, or the file cannot be created.

    Attributes:
        stats: What has been read so far.
    """

    def __init__(
        self,
        interface: str,
        *,
        netns: str | None = None,
        snaplen: int = SNAPLEN,
        ring_bytes: int = RING_BYTES,
        block_bytes: int = _BLOCK_BYTES,
        promiscuous: bool = True,
        tunnel: Tunnel = "inner",
        write: Path | None = None,
    ) -> None:
        self.interface = interface
        self._inner = tunnel == "inner"
        self._fragments = np.zeros(FRAGMENT_SLOTS, FRAGMENT_DTYPE)
        self._packets = np.zeros(0, PACKET_DTYPE)
        self._lost: str | None = None  # what became of the interface
        self._failure: DinnetError | None = None  # of writing the file
        self._stopping = False
        self._caught_up_us = 0
        self._writer: PcapngWriter | None = None
        self._ring = PacketRing(
            interface,
            netns=netns,
            snaplen=snaplen,
            ring_bytes=ring_bytes,
            block_bytes=block_bytes,
            retire_ms=_RETIRE_MS,
        )
        self._wake = -1
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if write is not None:
                link_type = self._ring.link_type
                self._writer = PcapngWriter(write, link_type=link_type, snaplen=snaplen, interface=interface)
            _load_kernels(self._fragments)
            self._ring.start(promiscuous)
        except BaseException:
            self.close()
            raise
        self.stats = CaptureStats(format="live", link_types=[LINK_TYPES[self._ring.link_type]], interfaces=1)
        self._kernel = self._ring.stats()

    @property
    def received(self) -> int:
        """Packets that the kernel has seen on the interface, dropped ones included."""
        return self._counters()[0]

    @property
    def dropped(self) -> int:
        """Packets that the kernel had no room for in the ring."""
        return self._counters()[1]

    @property
    def now_us(self) -> int:
        """The capture's clock, microseconds since 1970: packets with an earlier stamp have all been yielded.

        It goes on while no packets come, so that flows can expire by it.
        """
        return max(self._caught_up_us, self.stats.last_us or 0)

    def stop(self) -> None:
        """Let `batches` end once the packets captured up to now have been yielded.

        May be called from a signal handler or another thread, any number of times.
        """
        self._stopping = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def batches(
        self, *, tick_s: float = 0.25, duration_s: float | None = None, max_packets: int | None = None
    ) -> Iterator[Packets]:
        """Yield packets, PACKET_DTYPE (n,), as they come; each array is valid until the next is asked for.

        Args:
            tick_s: An empty array is yielded when nothing came for this long.
            duration_s: End after this time.
            max_packets: End after this many packets; neither `stats` nor the written file has more.

        Raises:
            DinnetError: The interface went down or away, or writing failed. All packets captured
                before that have been yielded.
        """
        end = None if duration_s is None else time.monotonic() + duration_s
        drained: float | None = None
        ring = self._ring
        while True:
            now = time.monotonic()
            if end is not None and now >= end:
                self._stopping = True
            if drained is None and (self._stopping or self._lost or self._failure):
                # Nothing new comes from here on; the last block is handed over when it is old enough.
                ring.stop()
                drained = now + 3 * _RETIRE_MS / 1000
            asked_us = time.time_ns() // 1000
            if ring.ready():
                packets = self._take(max_packets)
                if len(packets):
                    yield packets
                if max_packets is not None and self.stats.frames >= max_packets:
                    break
                continue
            self._caught_up_us = asked_us - 3 * _RETIRE_MS * 1000
            if drained is not None:
                if now >= drained:
                    break
                time.sleep(_RETIRE_MS / 2000)
                continue
            reason = ring.error()
            if reason is not None:
                self._lost = reason
                continue
            ring.wait(self._wake, tick_s if end is None else min(tick_s, end - now))
            if not ring.ready():
                yield _NO_PACKETS
        self._counters()
        if self._failure:
            raise self._failure
        if self._lost:
            raise CaptureError(f"{self._lost}: {self.stats.frames} packets were captured before")

    def _take(self, max_packets: int | None) -> Packets:
        """Packets of the block that is ready, written to the file if there is one."""
        frames, times_ns = self._ring.read()
        if max_packets is not None:
            left = max_packets - self.stats.frames
            frames, times_ns = frames[:left], times_ns[:left]
        self._write(frames, times_ns)
        packets = self._parse(frames)
        self._ring.release()
        return packets

    def _write(self, frames: Frames, times_ns: NDArray[np.int64]) -> None:
        if self._writer is None or self._writer.closed:
            return
        try:
            self._writer.write(self._ring.memory, frames, times_ns)
        except DinnetError as error:
            self._failure = error

    def _parse(self, frames: Frames) -> Packets:
        if len(frames) > len(self._packets):
            self._packets = np.zeros(max(1024, 2 * len(frames)), PACKET_DTYPE)
        if len(frames) == 0:
            return _NO_PACKETS
        packets = self._packets[: len(frames)]
        parsed = parse_frames(self._ring.memory, frames, len(frames), self._inner, self._fragments, packets)
        self.stats.count(len(frames), *parsed)
        return packets

    def _counters(self) -> tuple[int, int]:
        if not self._ring.closed:
            self._kernel = self._ring.stats()
        return self._kernel.packets, self._kernel.dropped

    def close(self) -> None:
        """Stop capturing and finish the written file.

        Raises:
            DinnetError: The end of the file could not be written; its packets are all there.
        """
        if self._ring.closed:
            return
        received, dropped = self._counters()
        self._ring.close()
        if self._wake >= 0:
            wake, self._wake = self._wake, -1
            os.close(wake)
        if self._writer is not None:
            self._writer.close(received=received, dropped=dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _load_kernels(fragments: NDArray[np.void]) -> None:
    """Have the compiled code ready before the first packet: compiling it takes longer than a ring can bridge."""
    block = np.zeros(64, np.uint8)
    frames, packets, times = np.zeros(1, FRAME_DTYPE), np.zeros(1, PACKET_DTYPE), np.zeros(1, np.int64)
    walk_block(block, block.view(np.uint32), 0, 1, 1, frames, times)
    parse_frames(block, frames, 0, True, fragments, packets)
    encode_packets(block, frames[:0], times, block, block.view(np.uint32))
