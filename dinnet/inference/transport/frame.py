"""One frame: a message with, optionally, a tensor's bytes, checksummed, and what both ends must agree on."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash

from dinnet.errors import DinnetError

MAGIC: Final = b"DINF"
VERSION: Final = 1
#: magic, version, dtype, block size, epoch, model hash, bytes of the message, bytes of the tensor, checksum
_HEADER: Final = struct.Struct("<4sBBHIQIQQ")
_CHECKSUM_BYTES: Final = 8
DTYPE_CODES: Final = {"": 0, "float32": 1, "bfloat16": 2, "float16": 3, "int64": 4}
_DTYPE_NAMES: Final = {code: name for name, code in DTYPE_CODES.items()}


class FrameError(DinnetError):
    """A frame is damaged, or comes from something that does not fit."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    payload: bytes | memoryview = b""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    block_size: int = 0
    epoch: int = 0  # of the sender: a worker that starts again has another one
    model_hash: int = 0


def encode(frame: Frame) -> bytes:
    """A frame's bytes: header, message as JSON, tensor."""
    message = json.dumps([frame.kind, frame.meta, list(frame.shape)], separators=(",", ":")).encode()
    fields = (MAGIC, VERSION, DTYPE_CODES[frame.dtype], frame.block_size, frame.epoch, frame.model_hash)
    head = _HEADER.pack(*fields, len(message), len(frame.payload), 0)[:-_CHECKSUM_BYTES]
    return b"".join((head, _checksum(head, message, frame.payload), message, frame.payload))


def decode(data: bytes) -> Frame:
    """The frame in these bytes.

    Raises:
        FrameError: They are no whole frame of this version, or damaged.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise FrameError(f"a frame of {len(view)} bytes is cut short")
    magic, version, dtype, block_size, epoch, model_hash, message_len, payload_len, _ = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FrameError("no frame of dinnet's; is another program at that port?")
    if version != VERSION:
        raise FrameError(f"frame version {version}, where {VERSION} is spoken here; run the same release at both ends")
    if len(view) != _HEADER.size + message_len + payload_len:
        raise FrameError("a frame's length is not what its header tells")
    message, payload = view[_HEADER.size : _HEADER.size + message_len], view[_HEADER.size + message_len :]
    head_end = _HEADER.size - _CHECKSUM_BYTES
    if _checksum(view[:head_end], message, payload) != view[head_end : _HEADER.size]:
        raise FrameError("a frame's checksum is wrong: it was damaged on its way")
    try:
        kind, meta, shape = json.loads(bytes(message))
        if not (isinstance(kind, str) and isinstance(meta, dict)):
            raise ValueError
        return Frame(kind, meta, payload, _DTYPE_NAMES[dtype], tuple(map(int, shape)), block_size, epoch, model_hash)
    except (ValueError, TypeError, KeyError) as error:
        raise FrameError("a frame's message is no such message") from error


def _checksum(head: bytes | memoryview, message: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_64(head)
    digest.update(message)
    digest.update(payload)
    return digest.intdigest().to_bytes(_CHECKSUM_BYTES, "little")


def misfits(ours: dict[str, Any], theirs: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """What two ends that greet each other differ in, in words."""
    return [
        f"{key.replace('_', ' ')} is {theirs.get(key)!r} there and {ours.get(key)!r} here"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]
