"""Where zstd frames end (RFC 8878, section 3.1), from the compressed bytes alone.

The decompressor gives what it has at the end of the file, and does not tell whether the frame was whole.
"""

from __future__ import annotations

from typing import Final

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

_CHECKSUM_BYTES: Final = 4
_RLE_BLOCK: Final = 1


class ZstdFrames:
    """Follows headers through a stream that is shown to it piece by piece; `whole` is whether a frame may end here."""

    def __init__(self) -> None:
        self._skip = 0  # bytes of the stream that are of no interest
        self._head = bytearray()  # what there is of the next header
        self._in_frame = False  # after its header, before its end
        self._has_checksum = False

    @property
    def whole(self) -> bool:
        """Whether all frames that have begun are over."""
        return not (self._skip or self._head or self._in_frame)

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of the stream."""
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            step = min(self._header_bytes() - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == self._header_bytes():
                self._take_header()

    def _header_bytes(self) -> int:
        """Bytes of the next header, as far as that is known: of a frame, its magic number and what follows."""
        if self._in_frame:
            return 3
        return 8 if self._is_skippable() else 5

    def _is_skippable(self) -> bool:
        return len(self._head) >= 4 and self._head[0] & 0xF0 == 0x50 and self._head[1:4] == b"\x2a\x4d\x18"

    def _take_header(self) -> None:
        head = bytes(self._head)
        self._head.clear()
        if self._in_frame:
            self._take_block(int.from_bytes(head, "little"))
        elif head[0] & 0xF0 == 0x50:
            self._skip = int.from_bytes(head[4:], "little")
        else:
            # Anything but a magic number here is the decompressor's to refuse.
            self._take_descriptor(head[4])

    def _take_descriptor(self, descriptor: int) -> None:
        single_segment = descriptor >> 5 & 1
        window_bytes = 1 - single_segment
        dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
        size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        self._skip = window_bytes + dictionary_bytes + size_bytes
        self._has_checksum = bool(descriptor >> 2 & 1)
        self._in_frame = True

    def _take_block(self, header: int) -> None:
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        self._skip = 1 if kind == _RLE_BLOCK else size
        if last:
            self._in_frame = False
            self._skip += _CHECKSUM_BYTES if self._has_checksum else 0
