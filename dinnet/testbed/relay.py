"""Delay and random loss between two interfaces, in user space, for kernels without netem."""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from typing import Final

from dinnet.testbed.process import precise_timers

_PACKET_VNET_HDR: Final = 15  # linux/if_packet.h
_PACKET_IGNORE_OUTGOING: Final = 23
_PACKET_ADD_MEMBERSHIP: Final = 1
_PACKET_MR_PROMISC: Final = 1
_ETH_P_ALL: Final = 3
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_SOL_PACKET: Final = 263
_BUFFER_BYTES: Final = 16 << 20
_FRAME_BYTES: Final = 65_536 + 64  # the largest segmentation-offload packet, Ethernet and virtio headers
_BATCH: Final = 64
# epoll counts in whole milliseconds: it is asked to sleep until this long before a packet is due, select does the rest.
_COARSE_S: Final = 0.0015


def open_side(interface: str) -> socket.socket:
    """A packet socket that sees what arrives on `interface` and sends frames out of it.

    Frames carry the virtio header, so that checksums left to the hardware and segmentation-offload packets
    pass through as they are: without it the receiver would drop the one, and the kernel refuse the other.
    """
    side = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    side.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    side.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    side.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    side.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    side.bind((interface, _ETH_P_ALL))
    index = socket.if_nametoindex(interface)
    membership = index.to_bytes(4, "little") + _PACKET_MR_PROMISC.to_bytes(2, "little") + bytes(10)
    side.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
    side.setblocking(False)
    return side


def relay(sides: tuple[socket.socket, socket.socket], delay_s: float, loss: float, seed: int) -> None:
    """Carry frames between two sides until the process is ended.

    Each frame waits `delay_s` and is dropped with probability `loss`. With segmentation offload a frame is what
    the sender's stack handed down, up to 64 KB, and it is dropped as a whole.
    """
    precise_timers()
    waiting: tuple[deque[tuple[float, bytes]], deque[tuple[float, bytes]]] = (deque(), deque())
    chance = random.Random(seed).random
    clock = time.monotonic
    poll = select.epoll()
    for side in sides:
        poll.register(side, select.EPOLLIN)
    of_descriptor = {side.fileno(): index for index, side in enumerate(sides)}
    while True:
        now = clock()
        next_due = None
        for index, frames in enumerate(waiting):
            out = sides[1 - index]
            while frames and frames[0][0] <= now:
                _send(out, frames.popleft()[1])
            if frames and (next_due is None or frames[0][0] < next_due):
                next_due = frames[0][0]
        for index in _readable(poll, sides, of_descriptor, None if next_due is None else next_due - clock()):
            due = clock() + delay_s
            frames = waiting[index]
            try:
                for _ in range(_BATCH):
                    frame = sides[index].recv(_FRAME_BYTES)
                    if not loss or chance() >= loss:
                        frames.append((due, frame))
            except BlockingIOError:
                continue


def _send(out: socket.socket, frame: bytes) -> None:
    try:
        out.send(frame)
    except OSError:
        # The queue is full or the other end is going down: a link loses such a frame too.
        return


def _readable(
    poll: select.epoll,
    sides: tuple[socket.socket, socket.socket],
    of_descriptor: dict[int, int],
    wait_s: float | None,
) -> list[int]:
    """The sides with frames to read, after at most `wait_s` (None: no limit)."""
    if wait_s is None:
        return [of_descriptor[descriptor] for descriptor, _ in poll.poll()]
    if wait_s < _COARSE_S:
        return [of_descriptor[side.fileno()] for side in select.select(sides, (), (), max(wait_s, 0.0))[0]]
    return [of_descriptor[descriptor] for descriptor, _ in poll.poll(wait_s - 0.001)]
