"""What an end of a MACsec link must remember so that no key is ever used twice: one small file a link.

The file is written anew beside the old one, flushed, and given its name, before what it says is done. A file that is
missing or damaged says nothing; the end then takes a fresh random generation, under which no key was ever used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dinnet.errors import DinnetError, reason
from dinnet.parts import new_file

_VERSION: Final = 1
_FOLDER_MODE: Final = 0o700


@dataclass(frozen=True)
class PeerState:
    """What is known of the other end, for as long as both generations last."""

    sci: int
    generation: str  # hexadecimal digits
    base: int  # the highest number of its keys that it has used, as far as known; -1: none
    first: int  # the lowest number of its keys that was installed here under these generations
    installed: int  # the highest number of its keys that was ever installed here
    confirmed: int  # the highest number of our keys that it has installed


@dataclass(frozen=True)
class LinkState:
    """One end of a link. Nothing in it is secret."""

    link: str
    sci: int  # our own
    generation: str
    number: int  # of our keys the highest that was ever taken into use; -1: none
    recent: tuple[str, ...] = ()  # identifiers of the last two of them
    peer: PeerState | None = None
    retired: tuple[str, ...] = ()  # the peer's generations that it has left while ours was the present one


def path_of(folder: Path, link: str) -> Path:
    return folder / f"{link}.json"


@contextlib.contextmanager
def locked(folder: Path, link: str) -> Iterator[None]:
    """Be the only one that works on this link's state and keys; waits for whoever is.

    Raises:
        DinnetError: The folder cannot be made or used.
    """
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = os.open(folder / f".{link}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DinnetError(f"{folder}: cannot keep the state of link {link} there: {reason(error)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def load(folder: Path, link: str) -> LinkState | None:
    """The state, or None where it is missing or not whole.

    Raises:
        DinnetError: It is there and cannot be read.
    """
    try:
        content = path_of(folder, link).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DinnetError(f"{path_of(folder, link)}: cannot read: {reason(error)}") from error
    try:
        return _decoded(content, link)
    except (ValueError, TypeError, KeyError):
        return None


def save(folder: Path, state: LinkState) -> None:
    """Put the state on disk; when this returns, it outlives a power failure.

    Raises:
        DinnetError: It cannot be written. The old state is then still there; nothing that needs the new may be done.
    """
    path = path_of(folder, state.link)
    try:
        descriptor, part = new_file(path)
        try:
            content = _encoded(state)
            if os.write(descriptor, content) != len(content):
                raise OSError(28, "No space left on device")
            os.fsync(descriptor)
            part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        _flush_folder(folder)
    except OSError as error:
        raise DinnetError(f"{path}: cannot write, so no key was changed: {reason(error)}") from error


def forget(folder: Path, link: str) -> None:
    """Remove the state of a link that is gone; the next one starts with a fresh generation."""
    with contextlib.suppress(FileNotFoundError):
        path_of(folder, link).unlink()
        _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encoded(state: LinkState) -> bytes:
    body = json.dumps({"version": _VERSION, **asdict(state)}, sort_keys=True)
    return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "state": body}).encode() + b"\n"


def _decoded(content: bytes, link: str) -> LinkState:
    outer = json.loads(content)
    body = str(outer["state"])
    if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
        raise ValueError("damaged")
    fields: dict[str, Any] = json.loads(body)
    if fields.pop("version") != _VERSION or fields["link"] != link:
        raise ValueError("another version's or another link's")
    peer = fields.pop("peer")
    lists: dict[str, Any] = {name: tuple(fields.pop(name)) for name in ("recent", "retired")}
    return LinkState(**fields, **lists, peer=PeerState(**peer) if peer is not None else None)
