"""Packet sockets (packet(7)): made in any network namespace, asked about interfaces, and filtered."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError, UsageError, reason

SIOCGIFINDEX: Final = 0x8933
SIOCGIFFLAGS: Final = 0x8913
SIOCGIFHWADDR: Final = 0x8927
LINKTYPE_ETHERNET: Final = 1
LINKTYPE_RAW: Final = 101

_CLONE_NEWNET: Final = 0x40000000
_NETNS_FOLDER: Final = Path("/run/netns")
_SO_ATTACH_FILTER: Final = 26

# Classic BPF (linux/filter.h): opcodes, and the offsets of the kernel's own packet fields.
_BPF_LD_ABS: Final = 0x20
_BPF_JEQ: Final = 0x15
_BPF_RET: Final = 0x06
_SKF_AD_PROTOCOL: Final = 0xFFFFF000
_SKF_AD_PKTTYPE: Final = 0xFFFFF004
_PACKET_OUTGOING: Final = 4


def open_socket(netns: str | None, kind: int) -> socket.socket:
    """A packet socket that receives nothing yet, made in network namespace `netns`."""
    if netns is None:
        return _raw_socket(kind)
    made: list[socket.socket] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            _enter(netns)
            made.append(_raw_socket(kind))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            failed.append(error)

    # setns moves only the thread that calls it; a socket stays where it was made. A thread of its
    # own means that nothing else of this process can be left in the wrong namespace.
    thread = threading.Thread(target=enter, name="dinnet-netns")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _enter(netns: str) -> None:
    """Move this thread into network namespace `netns`, a name as in `ip netns` or a path.

    Raises:
        UsageError: The name is empty.
        DinnetError: There is none, or this process may not enter it.
    """
    if not netns:
        raise UsageError("--netns: an empty name; `ip netns list` shows those there are")
    is_path = "/" in netns
    where = f"network namespace {netns}"
    try:
        # A path may name anything; of a FIFO, a plain open would wait for a writer.
        namespace = os.open(netns if is_path else _NETNS_FOLDER / netns, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        advice = "" if is_path else ": `ip netns list` shows those there are"
        if error.errno == errno.ENOENT and not is_path:
            raise DinnetError(f"no {where}{advice}") from error
        raise DinnetError(f"{where}: {reason(error)}{advice}") from error
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                raise DinnetError(f"{where}: it is something else than a network namespace")
            raise DinnetError(f"{where}: cannot enter it: {os.strerror(code)}; this needs root")
    finally:
        os.close(namespace)


def _raw_socket(kind: int) -> socket.socket:
    try:
        return socket.socket(socket.AF_PACKET, kind | socket.SOCK_CLOEXEC, 0)
    except PermissionError as error:
        raise DinnetError("live capture needs root or the capability CAP_NET_RAW: run it with sudo") from error
    except OSError as error:
        raise DinnetError(f"this kernel gives no packet sockets: {error.strerror}") from error


def interface_number(sock: socket.socket, interface: str, request: int) -> int:
    """What an interface ioctl says in the first field of its answer: index, flags or hardware type."""
    import fcntl

    answer = fcntl.ioctl(sock.fileno(), request, struct.pack("16s24x", interface.encode()))
    if request == SIOCGIFINDEX:
        return int(struct.unpack_from("i", answer, 16)[0])
    return int(struct.unpack_from("H", answer, 16)[0])


def _instruction(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, value)


def attach_filter(sock: socket.socket, program: bytes) -> None:
    text = ctypes.create_string_buffer(program, len(program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(text)))


def capture_filter(loopback: bool, link_type: int, snaplen: int) -> bytes:
    """Cut packets to `snaplen`; on loopback drop the copy seen on its way out, since each comes back in."""
    program = b""
    if loopback:
        program += _instruction(_BPF_LD_ABS, 0, 0, _SKF_AD_PKTTYPE)
        program += _instruction(_BPF_JEQ, 0, 1, _PACKET_OUTGOING)
        program += _instruction(_BPF_RET, 0, 0, 0)
    if link_type == LINKTYPE_RAW:
        # Without a link header only the socket knows what a packet is.
        program += _instruction(_BPF_LD_ABS, 0, 0, _SKF_AD_PROTOCOL)
        program += _instruction(_BPF_JEQ, 2, 0, 0x0800)
        program += _instruction(_BPF_JEQ, 1, 0, 0x86DD)
        program += _instruction(_BPF_RET, 0, 0, 0)
    return program + _instruction(_BPF_RET, 0, 0, snaplen)


def drop_everything() -> bytes:
    """A filter that lets nothing through."""
    return _instruction(_BPF_RET, 0, 0, 0)
