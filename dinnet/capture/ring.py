"""A memory-mapped packet ring on one interface: Linux AF_PACKET with TPACKET_V3 (packet(7), linux/if_packet.h).

The kernel fills blocks of memory that this process also sees; a block is handed over when it is
full or a few milliseconds old, and handed back once its packets have been used.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dinnet.capture.packet import FRAME_DTYPE, Frames
from dinnet.capture.packetsocket import (
    LINKTYPE_ETHERNET,
    LINKTYPE_RAW,
    SIOCGIFFLAGS,
    SIOCGIFHWADDR,
    SIOCGIFINDEX,
    attach_filter,
    capture_filter,
    drop_everything,
    interface_number,
    open_socket,
)
from dinnet.errors import DinnetError, UsageError
from dinnet.jit import compiled

_ETH_P_ALL: Final = 0x0003
_SOL_PACKET: Final = 263
_PACKET_ADD_MEMBERSHIP: Final = 1
_PACKET_RX_RING: Final = 5
_PACKET_STATISTICS: Final = 6
_PACKET_VERSION: Final = 10
_PACKET_RESERVE: Final = 12
_PACKET_MR_PROMISC: Final = 1
_TPACKET_V3: Final = 2
_IFF_UP: Final = 0x1
_NAME_MAX: Final = 15  # IFNAMSIZ - 1

_STATUS_USER: Final = 1
_STATUS_VLAN_VALID: Final = 1 << 4
_STATUS_VLAN_TPID_VALID: Final = 1 << 6
_TPID_8021Q: Final = 0x8100
_ADDRESSES_BYTES: Final = 12  # of the two Ethernet addresses, which a VLAN tag follows
_VLAN_TAG_BYTES: Final = 4
_FRAME_BYTES: Final = 2048  # TPACKET_V3 packs packets as they come; only its checks look at this

#: A packet takes at least this much of a block: its header, its sender's address, and alignment.
_SMALLEST_SLOT_BYTES: Final = 80

_ARPHRD_LOOPBACK: Final = 772

#: Hardware types (linux/if_arp.h) whose frames start with an Ethernet header.
_ETHERNET_HARDWARE: Final = frozenset({1, _ARPHRD_LOOPBACK})
#: Hardware types that carry bare IP, or whose own header the kernel takes off before a cooked socket
#: sees the packet: InfiniBand, PPP, raw IP, IP-in-IP (v4, v6), SIT, GRE (v4, v6), none (tun, WireGuard).
_IP_HARDWARE: Final = frozenset({32, 512, 519, 768, 769, 776, 778, 823, 65534})


@dataclass(frozen=True, slots=True)
class RingStats:
    """What the kernel did so far: packets offered to the ring, and those of them it had no room for."""

    packets: int
    dropped: int


@compiled
def walk_block(
    ring: NDArray[np.uint8],
    words: NDArray[np.uint32],
    start: int,
    link_type: int,
    snaplen: int,
    frames: Frames,
    times_ns: NDArray[np.int64],
) -> int:
    """List the packets of one block, and put back the VLAN tags that the kernel took out.

    Args:
        ring: bytes of the whole ring; a tag is written into the room left in front of its packet.
        words: the same memory as 32-bit words.
        start: byte offset of the block.
        link_type: LINKTYPE_ value for `frames`; tags are put back into Ethernet frames only.
        snaplen: most bytes of a packet to keep.
        frames: FRAME_DTYPE, room for all the packets of a block, overwritten.
        times_ns: as many nanosecond time stamps, overwritten.

    Returns:
        The number of packets.
    """
    count = int(words[(start + 12) >> 2])
    at = start + int(words[(start + 16) >> 2])
    for i in range(count):
        # struct tpacket3_hdr: next, sec, nsec, snaplen, len, status, mac (16 bits), rxhash, tci, tpid (16 bits)
        word = at >> 2
        captured = int(words[word + 3])
        wire = int(words[word + 4])
        status = int(words[word + 5])
        offset = at + int(ring[at + 24]) + (int(ring[at + 25]) << 8)
        if status & _STATUS_VLAN_VALID and link_type == LINKTYPE_ETHERNET and captured >= _ADDRESSES_BYTES:
            tci = int(words[word + 8])
            tpid = (int(words[word + 9]) & 0xFFFF) if status & _STATUS_VLAN_TPID_VALID else _TPID_8021Q
            offset -= _VLAN_TAG_BYTES
            captured += _VLAN_TAG_BYTES
            wire += _VLAN_TAG_BYTES
            for k in range(offset, offset + _ADDRESSES_BYTES):
                ring[k] = ring[k + _VLAN_TAG_BYTES]
            ring[offset + 12] = tpid >> 8
            ring[offset + 13] = tpid & 0xFF
            ring[offset + 14] = (tci >> 8) & 0xFF
            ring[offset + 15] = tci & 0xFF
        stamp = int(words[word + 1]) * 1_000_000_000 + int(words[word + 2])
        frames[i]["offset"] = offset
        frames[i]["time_us"] = stamp // 1000
        frames[i]["captured"] = min(captured, snaplen)
        frames[i]["wire"] = wire
        frames[i]["link_type"] = link_type
        frames[i]["reserved"] = 0
        times_ns[i] = stamp
        at += int(words[word])
    return count


class PacketRing:
    """The packets of one interface, from `start` on.

    Args:
        interface: its name.
        netns: network namespace that it is in: a name as in `ip netns`, or a path; None for this one.
        snaplen: most bytes of a packet to keep.
        ring_bytes: memory for packets that wait to be read, rounded down to whole blocks.
        block_bytes: a power of two and a multiple of the page size; no packet can be longer.
        retire_ms: age at which a block is handed over though it is not full.

    Raises:
        DinnetError: no such interface, it is down, its link layer cannot be read, no permission, no
            memory, or not Linux.
        UsageError: impossible sizes.
    """

    def __init__(
        self,
        interface: str,
        *,
        netns: str | None,
        snaplen: int,
        ring_bytes: int,
        block_bytes: int,
        retire_ms: int,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise DinnetError("live capture works on Linux only: record with tcpdump and classify the file")
        if not 1 <= snaplen <= block_bytes:
            raise UsageError(f"snap length {snaplen}: give 1 to {block_bytes} bytes")
        if ring_bytes < 2 * block_bytes:
            raise UsageError(f"a packet ring of {ring_bytes} bytes is too small: give at least {2 * block_bytes}")
        self.interface = interface
        self.snaplen = snaplen
        self.retire_ms = retire_ms
        self.block_bytes = block_bytes
        self.blocks = ring_bytes // block_bytes
        self._next = 0
        self._packets = 0
        self._dropped = 0
        self._counting = threading.Lock()
        self._sock, self._where = open_socket(netns, socket.SOCK_RAW), f" in namespace {netns}" if netns else ""
        try:
            self.link_type = self._identify(netns)
            self._map()
        except BaseException:
            self.close()
            raise
        slots = block_bytes // _SMALLEST_SLOT_BYTES
        self._frames = np.zeros(slots, FRAME_DTYPE)
        self._times_ns = np.zeros(slots, np.int64)

    def _identify(self, netns: str | None) -> int:
        """Look the interface up and choose how to read it: its LINKTYPE_ value."""
        name = self.interface
        try:
            if not 1 <= len(name.encode()) <= _NAME_MAX:
                raise OSError(errno.ENODEV, "")
            self._index = interface_number(self._sock, name, SIOCGIFINDEX)
            hardware = interface_number(self._sock, name, SIOCGIFHWADDR)
            up = interface_number(self._sock, name, SIOCGIFFLAGS) & _IFF_UP
        except (OSError, UnicodeEncodeError) as error:
            raise DinnetError(f"no interface {name}{self._where}: `ip link` lists those there are") from error
        if not up:
            raise DinnetError(f"interface {name}{self._where} is down: bring it up (ip link set {name} up)")
        self._loopback = hardware == _ARPHRD_LOOPBACK
        if hardware in _ETHERNET_HARDWARE:
            return LINKTYPE_ETHERNET
        if hardware not in _IP_HARDWARE:
            raise DinnetError(
                f"interface {name}{self._where} has link layer {hardware} (linux/if_arp.h), which cannot be read: "
                "use an Ethernet, loopback or IP interface"
            )
        self._sock.close()
        self._sock = open_socket(netns, socket.SOCK_DGRAM)
        return LINKTYPE_RAW

    def _map(self) -> None:
        size = self.blocks * self.block_bytes
        request = struct.pack(
            "7I",
            self.block_bytes,
            self.blocks,
            _FRAME_BYTES,
            self.block_bytes // _FRAME_BYTES * self.blocks,
            self.retire_ms,
            0,
            0,
        )
        self._sock.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
        self._sock.setsockopt(_SOL_PACKET, _PACKET_RESERVE, _VLAN_TAG_BYTES)
        try:
            self._sock.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
            self._map_memory = mmap.mmap(self._sock.fileno(), size)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise UsageError(f"the kernel refuses a packet ring in blocks of {self.block_bytes} bytes") from error
            raise DinnetError(
                f"no memory for a packet ring of {size >> 10} KiB ({error.strerror}): ask for a smaller one"
            ) from error
        self.memory = np.frombuffer(self._map_memory, np.uint8)
        self._words = self.memory.view(np.uint32)

    def start(self, promiscuous: bool) -> None:
        """Let packets in; with `promiscuous` also those sent to other hosts.

        Raises:
            DinnetError: the interface is gone by now.
        """
        attach_filter(self._sock, capture_filter(self._loopback, self.link_type, self.snaplen))
        if promiscuous:
            member = struct.pack("iHH8x", self._index, _PACKET_MR_PROMISC, 0)
            with suppress(OSError):  # not every device can; what it delivers is captured
                self._sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, member)
        try:
            self._sock.bind((self.interface, _ETH_P_ALL))
        except OSError as error:
            raise DinnetError(f"cannot capture on {self.interface}{self._where}: {error.strerror}") from error

    def fileno(self) -> int:
        return self._sock.fileno()

    def ready(self) -> bool:
        """Whether the next block has been handed over."""
        return bool(self._words[(self._next * self.block_bytes + 8) >> 2] & _STATUS_USER)

    def read(self) -> tuple[Frames, NDArray[np.int64]]:
        """Packets of the next block, which must be `ready`: frames in `memory`, and times in nanoseconds.

        Both, and the packets themselves, are valid until `release`.
        """
        count = walk_block(
            self.memory,
            self._words,
            self._next * self.block_bytes,
            self.link_type,
            self.snaplen,
            self._frames,
            self._times_ns,
        )
        return self._frames[:count], self._times_ns[:count]

    def release(self) -> None:
        """Hand the block that was read back to the kernel."""
        self._words[(self._next * self.block_bytes + 8) >> 2] = 0
        self._next = (self._next + 1) % self.blocks

    def stop(self) -> None:
        """Take no more packets; those in the ring stay to be read, the last ones after `retire_ms`."""
        attach_filter(self._sock, drop_everything())

    def error(self) -> str | None:
        """What went wrong with the interface since the last call, as a line for the user; None where nothing did."""
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            return None
        if code == errno.ENETDOWN:
            with suppress(OSError):
                if interface_number(self._sock, self.interface, SIOCGIFINDEX) == self._index:
                    return f"interface {self.interface}{self._where} went down during the capture"
            return f"interface {self.interface}{self._where} was removed during the capture"
        return f"capture on {self.interface}{self._where} failed: {os.strerror(code)}"

    def stats(self) -> RingStats:
        """Counts since the start. The kernel starts again at 0 with each question; this adds up.

        Any thread may ask.
        """
        with self._counting:
            packets, dropped, _ = struct.unpack("3I", self._sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12))
            self._packets += packets
            self._dropped += dropped
            return RingStats(self._packets, self._dropped)

    def wait(self, also: int, timeout_s: float) -> None:
        """Wait for a block, for an error, for descriptor `also` to be readable, or for the time to pass."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLERR)
        poll.register(also, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def close(self) -> None:
        self._sock.close()
        # The memory is unmapped with its last view; a caller may still hold one.
        for name in ("memory", "_words", "_map_memory"):
            self.__dict__.pop(name, None)
