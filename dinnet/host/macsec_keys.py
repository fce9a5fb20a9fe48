"""Key material for MACsec: the master key's file and its permissions, derivation, and keeping keys out of sight.

Derivation is HKDF-SHA256 (RFC 5869) on the standard library's hmac: ten lines that the RFC's own vectors check, against
a dependency on the `cryptography` package and its OpenSSL that nothing else here needs.

What can be wiped is: buffers read from files and derived keys are bytearrays that are zeroed. Copies that hmac and
pyroute2 make on the way are immutable bytes of Python and cannot be; hence `harden_process`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import os
import re
import resource
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError, reason

GENERATION_BYTES: Final = 16
MASTER_BYTES: Final = range(32, 65)
_KEY_TEXT_BYTES: Final = 256  # more than any good key file has
_KEY_ID_BYTES: Final = 16
_SALT_BYTES: Final = 12
_SALT: Final = b"dinnet macsec 1"
_PR_SET_DUMPABLE: Final = 4
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Secret:
    """Bytes that no repr shows and that are zeroed at the end."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer

    def __enter__(self) -> Secret:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> str:
        raise TypeError("a secret is not for pickling or copying")

    def wipe(self) -> None:
        self._buffer[:] = bytes(len(self._buffer))

    @property
    def view(self) -> memoryview:
        return memoryview(self._buffer)


@dataclass(frozen=True)
class KeyName:
    """All that makes a key unlike every other: nothing of it is secret.

    `number` counts the sender's keys under its generation and never goes back. The receiver's generation is in it, too,
    so that a receiver which forgot what it has seen never takes frames again that were sent before.
    """

    link: str
    cipher: str
    sender: int  # SCIs, 64 bits
    receiver: int
    sender_generation: bytes
    receiver_generation: bytes
    number: int

    @property
    def association(self) -> int:
        return self.number % 4

    def info(self, label: str) -> bytes:
        """The HKDF info string: fixed widths, or a length in front, so that no two names have the same."""
        texts = (label.encode(), self.link.encode(), self.cipher.encode())
        generations = (self.sender_generation, self.receiver_generation)
        if any(len(generation) != GENERATION_BYTES for generation in generations):
            raise ValueError(f"a generation has {GENERATION_BYTES} bytes")
        parts = [len(text).to_bytes(2) + text for text in texts]
        parts += [self.sender.to_bytes(8), self.receiver.to_bytes(8), *generations, self.number.to_bytes(8)]
        return b"".join(parts)


@dataclass(frozen=True)
class SaKey:
    """What the kernel needs of an association's key."""

    key: Secret
    key_id: bytes
    salt: bytes | None  # with an XPN cipher suite


def hkdf_sha256(material: bytes | bytearray | memoryview, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 sections 2.2 and 2.3 with SHA-256; `length` is in bytes, at most 8160."""
    if not 0 < length <= 255 * 32:
        raise ValueError(f"HKDF-SHA256 gives 1 to 8160 bytes, not {length}")
    extracted = hmac.digest(salt or bytes(32), bytes(material), "sha256")
    output, block = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]


def derive(master: Secret, name: KeyName, key_bytes: int, *, extended: bool = False) -> SaKey:
    """The key, its public identifier and, for XPN, the salt of one association."""
    return SaKey(
        Secret(bytearray(hkdf_sha256(master.view, _SALT, name.info("key"), key_bytes))),
        key_id(master, name),
        hkdf_sha256(master.view, _SALT, name.info("salt"), _SALT_BYTES) if extended else None,
    )


def key_id(master: Secret, name: KeyName) -> bytes:
    """By this the kernel's associations are told apart; it says nothing about the key."""
    return hkdf_sha256(master.view, _SALT, name.info("key id"), _KEY_ID_BYTES)


def seal(master: Secret, link: str, message: bytes) -> str:
    """A message's authentication code, in hexadecimal digits."""
    encoded = link.encode()
    key = hkdf_sha256(master.view, _SALT, b"seal" + len(encoded).to_bytes(2) + encoded, 32)
    return hmac.digest(key, message, "sha256").hex()


def harden_process() -> None:
    """No core dumps, no ptrace and no reading of /proc/self/mem by the same user from here on.

    Raises:
        DinnetError: The kernel refused.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise DinnetError(f"cannot forbid core dumps: {os.strerror(ctypes.get_errno())}")


def read_master(source: Path, link: str) -> Secret:
    """A link's master key: 64 to 128 hexadecimal digits in the file `source`, or in LINK.key of the folder `source`.

    Raises:
        DinnetError: It cannot be read, others could read or replace it, or it is no key. The message never holds
            anything of the content.
    """
    with _opened(source.absolute(), link) as (descriptor, path):
        buffer = bytearray(_KEY_TEXT_BYTES)
        with Secret(buffer):
            size = os.readv(descriptor, [buffer])
            if size == len(buffer):
                raise DinnetError(f"{path}: too long for a key: {2 * MASTER_BYTES[-1]} hexadecimal digits are the most")
            return _parse(buffer, size, path)


def _parse(text: bytearray, size: int, path: Path) -> Secret:
    while size and text[size - 1] in b"\r\n \t":
        size -= 1
    if size % 2 or size // 2 not in MASTER_BYTES or not re.fullmatch(rb"[0-9A-Fa-f]*", memoryview(text)[:size]):
        raise DinnetError(
            f"{path}: a key is {2 * MASTER_BYTES[0]} to {2 * MASTER_BYTES[-1]} hexadecimal digits, and nothing else "
            "(openssl rand -hex 32 makes one)"
        )
    master = bytearray(size // 2)
    for index in range(len(master)):
        master[index] = int(text[2 * index : 2 * index + 2], 16)
    if len(set(master)) < 8:  # of 32 random bytes, fewer than 8 different ones come up once in 10^38
        raise DinnetError(f"{path}: this is no random key (openssl rand -hex 32 makes one)")
    return Secret(master)


@contextlib.contextmanager
def _opened(source: Path, link: str) -> Iterator[tuple[int, Path]]:
    """Open from the root down, a component at a time and no link followed: what was checked is what is read."""
    with contextlib.ExitStack() as stack:
        at, path = Path("/"), list(source.parts[1:])
        folder = _open("/", None, at, os.O_DIRECTORY, stack)
        _check_folder(folder, at)
        while True:
            part = path.pop(0)
            at /= part
            found = _open(part, folder, at, 0, stack)
            status = os.fstat(found)
            if stat.S_ISREG(status.st_mode) and not path:
                _check_file(status, at)
                yield found, at
                return
            if not stat.S_ISDIR(status.st_mode):
                raise DinnetError(f"{at}: a {'folder' if path else 'file or folder with keys'} is expected here")
            _check_folder(found, at)
            folder = found
            if not path:
                if at.name == f"{link}.key":
                    raise DinnetError(f"{at}: a file is expected here")
                if status.st_mode & _OTHERS:
                    raise DinnetError(f"{at}: others may look into this folder of keys: chmod 700 {at}")
                path.append(f"{link}.key")


def _open(name: str, folder: int | None, path: Path, flags: int, stack: contextlib.ExitStack) -> int:
    # O_NONBLOCK: a FIFO in its place must not stop us.
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise DinnetError(f"{path}: a symbolic link; name the key's real path") from error
        raise DinnetError(f"{path}: cannot open the key: {reason(error)}") from error
    stack.callback(os.close, descriptor)
    return descriptor


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in {0, os.geteuid()}:
        raise DinnetError(f"{path}: belongs to user {status.st_uid}, who could replace the key: chown it")


def _check_folder(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    _check_owner(status, path)
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise DinnetError(f"{path}: others may write into this folder, and could replace the key: chmod go-w {path}")


def _check_file(status: os.stat_result, path: Path) -> None:
    _check_owner(status, path)
    if status.st_mode & (_OTHERS | stat.S_IXUSR):
        mode = stat.S_IMODE(status.st_mode)
        raise DinnetError(f"{path}: mode {mode:04o}, and a key must be its owner's only: chmod 600 {path}")
    if status.st_nlink != 1:
        raise DinnetError(f"{path}: has {status.st_nlink} names (hard links); a key must have one")
