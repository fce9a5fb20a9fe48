"""Digests: gathered into lists, never the same twice while a list is unacknowledged (specification, "DigestEntry")."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from finsy.proto import p4r

from dinnet.switch.bytestrings import to_bytes, to_signed_bytes
from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.p4info import Digest, Layout, Leaf, LeafKind, Struct
from dinnet.switch.program import Program
from dinnet.switch.target import Target

#: Digests of a list, whatever the client allows: one message must stay below the 4 MiB that clients take.
MAX_LIST: Final = 1024
#: Digests remembered as sent but not acknowledged. The oldest lists beyond are forgotten as if they were.
MAX_UNACKED: Final = 1 << 16

#: Digests that wait for a controller: until there is one, or until it reads. The oldest beyond are lost.
MAX_HELD: Final = 4096
RETRY_S: Final = 0.25

Row = tuple[int, ...]


class DigestEncoder:
    """Writes a digest's values as the wire format of P4Data.

    A flow record has a hundred members; as that many protobuf objects it would take four times as long.
    """

    def __init__(self, digest: Digest) -> None:
        self._layout = digest.layout
        self._prefixes = {LeafKind.BITS: _prefixes(0x0A), LeafKind.ENUM: _prefixes(0x62)}
        self._small = {
            kind: [prefix[1] + bytes([value]) for value in range(256)] for kind, prefix in self._prefixes.items()
        }
        self._flat = self._tables()

    def encode(self, row: Row) -> bytes:
        """The bytes of one `data` field of a DigestList."""
        if self._flat is None:
            return _field(0x1A, self._encode(self._layout, iter(row)))
        parts = []
        for value, (small, prefixes) in zip(row, self._flat, strict=True):
            if value < 256:
                parts.append(small[value])
            else:
                size = (value.bit_length() + 7) >> 3
                parts.append(prefixes[size] + value.to_bytes(size, "big"))
        return _field(0x1A, _field(0x2A, b"".join(parts)))

    def _tables(self) -> list[tuple[list[bytes], list[bytes]]] | None:
        """For a struct of nothing but numbers, as flow records are: what stands for each member's values."""
        if not isinstance(self._layout, Struct) or self._layout.is_tuple:
            return None
        found = []
        for _, member in self._layout.members:
            small = self._small.get(member.kind) if isinstance(member, Leaf) else None
            if not isinstance(member, Leaf) or small is None:
                return None
            found.append((small, self._prefixes[member.kind]))
        return found

    def _encode(self, layout: Layout, values: Iterator[int]) -> bytes:
        if isinstance(layout, Leaf):
            return _leaf(layout, next(values))
        parts = []
        for _, member in layout.members:
            if isinstance(member, Struct):
                parts.append(_field(0x0A, self._encode(member, values)))
                continue
            small = self._small.get(member.kind)
            value = next(values)
            if small is None:
                parts.append(_field(0x0A, _leaf(member, value)))
            elif value < 256:
                parts.append(small[value])
            else:
                size = (value.bit_length() + 7) >> 3
                parts.append(self._prefixes[member.kind][size] + value.to_bytes(size, "big"))
        return _field(0x22 if layout.is_tuple else 0x2A, b"".join(parts))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + _varint(len(data)) + data


def _prefixes(tag: int) -> list[bytes]:
    """What stands before a member's value of each size in bytes."""
    sizes = range(257)
    heads = [bytes([tag]) + _varint(size) for size in sizes]
    return [b"\x0a" + _varint(len(head) + size) + head for size, head in zip(sizes, heads, strict=True)]


def _leaf(leaf: Leaf, value: int) -> bytes:
    if leaf.kind is LeafKind.BOOL:
        return b"\x18\x01" if value else b"\x18\x00"
    if leaf.kind is LeafKind.SIGNED:
        return _field(0x0A, to_signed_bytes(value))
    return _field(0x62 if leaf.kind is LeafKind.ENUM else 0x0A, to_bytes(value))


class _Stream:
    """One digest that somebody listens to."""

    def __init__(self, digest: Digest, config: p4r.DigestEntry.Config) -> None:
        self.digest = digest
        self.encoder = DigestEncoder(digest)
        self.config = config
        self.gathered: dict[Row, None] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.is_stuck = False  # nobody took what was offered last
        self.unacked: dict[Row, int] = {}  # row -> the list it was sent in
        self.lists: deque[tuple[int, int, list[Row]]] = deque()  # (expires at ns, list id, rows), oldest first

    def forget(self, list_id: int) -> None:
        for place, (_, id, rows) in enumerate(self.lists):
            if id == list_id:
                del self.lists[place]
                self._forget_rows(id, rows)
                return

    def forget_expired(self, now_ns: int) -> None:
        while self.lists and (self.lists[0][0] <= now_ns or len(self.unacked) > MAX_UNACKED):
            _, id, rows = self.lists.popleft()
            self._forget_rows(id, rows)

    def _forget_rows(self, list_id: int, rows: list[Row]) -> None:
        for row in rows:
            if self.unacked.get(row) == list_id:
                del self.unacked[row]


class Digests:
    """All digests of a program. `send` says whether a controller took the list."""

    def __init__(self, program: Program, target: Target, send: Callable[[int, p4r.DigestList], bool]) -> None:
        self._program = program
        self._target = target
        self._send = send
        self._streams: dict[int, _Stream] = {}
        self._last_list = 0
        self.sent = 0
        self.lost = 0  # nobody took them for too long, or nobody listens
        self.repeated = 0  # dropped, for the controller has them already

    def resume(self) -> None:
        """Go on with what an earlier server was told to listen to."""
        for id, config in self._target.digests().items():
            digest = self._program.digest(id)
            self._streams[id] = _Stream(digest, p4r.DigestEntry.Config.FromString(config))

    # Configuration, by Write and Read.

    def configure(self, type: int, message: p4r.DigestEntry) -> None:
        """Enable, change or disable a digest."""
        digest = self._program.digest(message.digest_id)
        stream = self._streams.get(digest.id)
        config = p4r.DigestEntry.Config()
        config.CopyFrom(message.config)
        if type == p4r.Update.INSERT and stream is not None:
            raise Refused(Code.ALREADY_EXISTS, f"digest {digest.name} is enabled")
        if type in {p4r.Update.MODIFY, p4r.Update.DELETE} and stream is None:
            raise Refused(Code.NOT_FOUND, f"digest {digest.name} is not enabled")
        if type != p4r.Update.DELETE and min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise invalid("a digest's time-out or list size is negative")
        if type == p4r.Update.INSERT:
            self._target.enable_digest(digest, config.SerializeToString())
            self._streams[digest.id] = _Stream(digest, config)
        elif type == p4r.Update.MODIFY and stream is not None:
            self._target.enable_digest(digest, config.SerializeToString())
            stream.config = config
            self._flush(stream)
        elif type == p4r.Update.DELETE and stream is not None:
            self._target.enable_digest(digest, None)
            self._stop(stream)
            del self._streams[digest.id]
        else:
            raise invalid("the update says neither insert, modify nor delete")

    def configured(self, digest_id: int) -> Sequence[p4r.DigestEntry]:
        """The configuration of a digest, if it is enabled; 0: of all that are."""
        return [
            p4r.DigestEntry(digest_id=id, config=stream.config)
            for id, stream in self._streams.items()
            if digest_id in (0, id)
        ]

    def close(self) -> None:
        """Send nothing more."""
        for stream in self._streams.values():
            self._stop(stream)
        self._streams.clear()

    def _stop(self, stream: _Stream) -> None:
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        self.lost += len(stream.gathered)
        stream.gathered.clear()

    # What the data plane and the controller send.

    def arrived(self, digest_id: int, rows: Sequence[Row]) -> None:
        """Take digests from the data plane."""
        stream = self._streams.get(digest_id)
        if stream is None:
            self.lost += len(rows)
            return
        stream.forget_expired(time.monotonic_ns())
        limit = _limit(stream.config)
        gathered, unacked = stream.gathered, stream.unacked
        for row in rows:
            if row in gathered or row in unacked:
                self.repeated += 1
                continue
            gathered[row] = None
            if len(gathered) >= limit and not stream.is_stuck:
                self._flush(stream)
        if stream.is_stuck:
            self._trim(stream)
        elif gathered and stream.timer is None:
            self._flush_later(stream, stream.config.max_timeout_ns / 1e9)

    def _flush_later(self, stream: _Stream, delay_s: float) -> None:
        stream.timer = asyncio.get_running_loop().call_later(delay_s, self._flush, stream)

    def _flush(self, stream: _Stream) -> None:
        """Send what was gathered; where nobody takes it, keep it and try again."""
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        limit = _limit(stream.config)
        while stream.gathered:
            rows = list(islice(stream.gathered, 1 if stream.is_stuck else limit))
            if not self._deliver(stream, rows):
                stream.is_stuck = True
                self._trim(stream)
                self._flush_later(stream, RETRY_S)
                return
            stream.is_stuck = False
            for row in rows:
                del stream.gathered[row]

    def _trim(self, stream: _Stream) -> None:
        """Forget the oldest of too many that nobody takes."""
        for row in list(islice(stream.gathered, max(0, len(stream.gathered) - MAX_HELD))):
            del stream.gathered[row]
            self.lost += 1

    def _deliver(self, stream: _Stream, rows: list[Row]) -> bool:
        """Send one list; whether a controller took it."""
        message = p4r.DigestList.FromString(b"".join(map(stream.encoder.encode, rows)))
        message.digest_id = stream.digest.id
        message.list_id = self._last_list + 1
        message.timestamp = time.time_ns()
        if not self._send(stream.digest.id, message):
            return False
        self._last_list += 1
        self.sent += len(rows)
        if stream.config.ack_timeout_ns:
            expires = time.monotonic_ns() + stream.config.ack_timeout_ns
            stream.lists.append((expires, self._last_list, rows))
            stream.unacked.update(dict.fromkeys(rows, self._last_list))
        return True

    def acknowledged(self, ack: p4r.DigestListAck) -> None:
        """Take a controller's acknowledgement. That of a list whose time is over is not worth a word.

        Raises:
            Refused: The program has no such digest, or no such list was ever sent.
        """
        self._program.digest(ack.digest_id)
        if not 0 < ack.list_id <= self._last_list:
            raise Refused(Code.NOT_FOUND, f"no digest list {ack.list_id} was sent")
        stream = self._streams.get(ack.digest_id)
        if stream is not None:
            stream.forget(ack.list_id)


def _limit(config: p4r.DigestEntry.Config) -> int:
    """How many digests a list may have."""
    return min(config.max_list_size or MAX_LIST, MAX_LIST) if config.max_timeout_ns else 1
