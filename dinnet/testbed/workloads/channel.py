"""One connection as an ordered stream of bytes: plain TCP, or cut into records the size of TLS's."""

from __future__ import annotations

import asyncio
import random
import struct
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from contextlib import suppress

BLOCK = 1 << 18  # bytes read or written at once
TLS_RECORD = 1 << 14  # RFC 8446, section 5.1: at most 2^14 bytes of plaintext in a record
TLS_OVERHEAD = 17  # content type (1) and AES-GCM tag (16) of a TLS 1.3 record, RFC 8446, section 5.2

# Every bulk transfer sends slices of this one buffer: what is inside does not matter, its making would cost CPU.
PAYLOAD = memoryview(random.Random(20).randbytes(1 << 20))


def payload(size: int) -> memoryview:
    """`size` bytes that mean nothing; at most 1 MiB."""
    return PAYLOAD[:size]


class Channel:
    """A connection's two directions, with bulk operations that touch no single byte."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._held = bytearray()

    async def handshake(self, client: bool, rng: random.Random) -> None:
        """Exchange what the transport needs before data; nothing on plain TCP."""

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send the parts as one write and wait until the kernel has taken nearly all of it."""
        self.writer.write(parts[0] if len(parts) == 1 else b"".join(parts))
        await self.writer.drain()

    async def send_bulk(self, size: int) -> None:
        """Send `size` bytes that mean nothing."""
        while size > 0:
            piece = min(size, BLOCK)
            await self.send(payload(piece))
            size -= piece

    async def _receive(self) -> bytes:
        data = await self.reader.read(BLOCK)
        if not data:
            raise IncompleteReadError(bytes(self._held), None)
        return data

    async def exactly(self, size: int) -> bytes:
        """The next `size` bytes. Raises IncompleteReadError where the peer ends first."""
        while len(self._held) < size:
            self._held += await self._receive()
        found = bytes(self._held[:size])
        del self._held[:size]
        return found

    async def until(self, mark: bytes) -> bytes:
        """The bytes up to and with `mark`."""
        searched = 0
        while (at := self._held.find(mark, searched)) < 0:
            searched = max(0, len(self._held) - len(mark) + 1)
            self._held += await self._receive()
        return await self.exactly(at + len(mark))

    async def skip(self, size: int) -> None:
        """Drop the next `size` bytes."""
        while size > len(self._held):
            size -= len(self._held)
            self._held = bytearray(await self._receive())
        del self._held[:size]

    async def some(self) -> bytes:
        """Whatever comes next, at least one byte."""
        if not self._held:
            return await self._receive()
        found = bytes(self._held)
        self._held.clear()
        return found

    async def close(self) -> None:
        """Send all that is left, then FIN."""
        # Emptied first: once closing, a transport can no longer be aborted while the peer takes nothing.
        self.writer.transport.set_write_buffer_limits(0)
        await self.writer.drain()
        self.writer.close()
        await self.writer.wait_closed()

    async def drop(self) -> None:
        """End the connection now: by FIN, or by RST where bytes are left that the peer does not take."""
        if self.writer.transport.get_write_buffer_size():
            self.writer.transport.abort()
        else:
            self.writer.close()
        with suppress(OSError):  # the peer had already reset it
            await self.writer.wait_closed()


class TlsChannel(Channel):
    """Records with the lengths of TLS 1.3, and a handshake with its message sizes. Nothing is encrypted.

    On the wire only lengths and times can be seen of real TLS, and these are kept.
    """

    async def handshake(self, client: bool, rng: random.Random) -> None:
        """ClientHello, the server's flight with a certificate chain, Finished, two session tickets."""
        if client:
            # 517 is the padded size of browsers; a post-quantum key share adds 1,200 bytes.
            await self._record(22, rng.choice((250, 320, 512, 512, 1730, 1800)))
            await self._expect(2)
            await self.send_record(rng.choice((36, 52)))
        else:
            await self._expect(1)
            chain = rng.choice((900, 2600, 3300, 4200))
            self._write(22, payload(122))
            self._write(23, payload(chain + 340))
            await self.writer.drain()
            await self._expect(1)
            for _ in range(rng.choice((0, 1, 2))):
                self._write(22, payload(rng.randint(190, 260)))
            await self.writer.drain()

    async def _record(self, kind: int, size: int) -> None:
        self._write(kind, payload(size))
        await self.writer.drain()

    async def _expect(self, records: int) -> None:
        while records:
            kind, _, length = struct.unpack("!BHH", await self._raw(5))
            await self._raw(length)
            # A change of cipher is a record of its own that ends no flight.
            records -= kind != 20

    async def _raw(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    def _write(self, kind: int, data: bytes | bytearray | memoryview) -> None:
        head = struct.pack("!BHH", kind, 0x0303, len(data) + TLS_OVERHEAD)
        self.writer.write(b"".join((head, data, bytes(TLS_OVERHEAD))))

    async def send_record(self, size: int) -> None:
        """One record of `size` bytes of plaintext that mean nothing."""
        await self._record(23, size)

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send the parts in as few records as they fit."""
        data = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        sealed: list[bytes | memoryview] = []
        for at in range(0, len(data), TLS_RECORD):
            piece = data[at : at + TLS_RECORD]
            sealed += (struct.pack("!BHH", 23, 0x0303, len(piece) + TLS_OVERHEAD), piece, bytes(TLS_OVERHEAD))
        self.writer.write(b"".join(sealed))
        await self.writer.drain()

    async def _receive(self) -> bytes:
        while True:
            kind, _, length = struct.unpack("!BHH", await self._raw(5))
            data = await self._raw(length)
            if kind == 23:
                return data[:-TLS_OVERHEAD]


DISCONNECTED = (OSError, IncompleteReadError, asyncio.TimeoutError)  # how a connection may end early
