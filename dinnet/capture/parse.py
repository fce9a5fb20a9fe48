# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""Frames to packet columns: the compiled part that every packet goes through.

Each step checks that the bytes it looks at were captured before it looks. The innermost (or
outermost) IP packet that can be read whole is the one that counts; see `parse_frames`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dinnet.capture.memory import be16, be32, be64, prefetch
from dinnet.capture.packet import (
    KIND_FLOW,
    KIND_MALFORMED,
    KIND_NOT_IP,
    MARK_FRAGMENT,
    MARK_TCP_HEADER,
)
from dinnet.jit import compiled

#: LINKTYPE_ values (tcpdump.org/linktypes.html) that can be read, with their names.
LINK_TYPES: Final = {
    0: "NULL",
    1: "ETHERNET",
    9: "PPP",
    12: "RAW (DLT 12)",
    14: "RAW (DLT 14)",
    50: "PPP_HDLC",
    101: "RAW",
    108: "LOOP",
    113: "LINUX_SLL",
    228: "IPV4",
    229: "IPV6",
    276: "LINUX_SLL2",
}

#: Remembered first fragments: a direct-mapped table, newest wins. Full keys are compared, so a
#: collision forgets a datagram and never mixes two.
FRAGMENT_SLOTS: Final = 1 << 14
#: Seconds that a first fragment is remembered: the longest reassembly time in RFC 791 and RFC 8200 4.5.
FRAGMENT_LIFETIME_US: Final = 60_000_000

FRAGMENT_DTYPE = np.dtype(
    [
        ("src_hi", "<u8"),
        ("src_lo", "<u8"),
        ("dst_hi", "<u8"),
        ("dst_lo", "<u8"),
        ("time_us", "<i8"),
        ("ident", "<u4"),
        ("sport", "<u2"),
        ("dport", "<u2"),
        ("proto", "u1"),
        ("used", "u1"),
        ("reserved", "<u2"),
        ("tunnel_id", "<u4"),
    ]
)

_ETH_IPV4 = 0x0800
_ETH_IPV6 = 0x86DD
_ETH_TEB = 0x6558  # transparent Ethernet bridging: an Ethernet frame inside GRE or Geneve
_IPPROTO_IPIP, _IPPROTO_TCP, _IPPROTO_UDP, _IPPROTO_IPV6, _IPPROTO_GRE, _IPPROTO_AH = 4, 6, 17, 41, 47, 51
_MAX_TAGS = 8
_MAX_EXTENSION_HEADERS = 16
_MAX_TUNNELS = 4
_MAPPED = np.uint64(0x0000FFFF00000000)


@compiled
def _ip_version(data, position, end):
    """The version nibble as an EtherType, 0 where there is no IP header."""
    if position >= end:
        return 0
    version = data[position] >> 4
    return _ETH_IPV4 if version == 4 else _ETH_IPV6 if version == 6 else 0


@compiled
def _loopback_type(family):
    """EtherType for an address family of NULL and LOOP frames, in whichever byte order it was written."""
    if family > 0xFFFF:
        family = ((family & 0xFF) << 24) | ((family & 0xFF00) << 8) | ((family >> 8) & 0xFF00) | (family >> 24)
    if family == 2:
        return _ETH_IPV4
    # AF_INET6: NetBSD and OpenBSD 24, FreeBSD 28, macOS 30, Linux 10.
    if family in (24, 28, 30, 10):
        return _ETH_IPV6
    return 0


@compiled
def _ppp_type(protocol):
    """EtherType for a PPP protocol number (IANA: PPP DLL protocol numbers)."""
    if protocol == 0x0021:
        return _ETH_IPV4
    if protocol == 0x0057:
        return _ETH_IPV6
    return 0x8847 if protocol in (0x0281, 0x0283) else 0


@compiled
def _ppp_header(data, position, end):
    """Position after a PPP header and the EtherType of what follows (RFC 1661, 1662)."""
    if position + 2 <= end and data[position] == 0xFF and data[position + 1] == 0x03:
        position += 2
    if position + 1 > end:
        return position, 0
    if data[position] & 1:  # protocol field compression: one odd byte
        return position + 1, _ppp_type(np.int64(data[position]))
    if position + 2 > end:
        return position, 0
    return position + 2, _ppp_type(np.int64(be16(data, position)))


@compiled
def _link_header(data, position, end, link_type):
    """Position after the link header and the EtherType of what follows; 0 where that is not known."""
    if link_type == 1:
        if position + 14 > end:
            return position, 0
        return position + 14, np.int64(be16(data, position + 12))
    if link_type in (12, 14, 101):
        return position, _ip_version(data, position, end)
    if link_type == 228:
        return position, _ETH_IPV4
    if link_type == 229:
        return position, _ETH_IPV6
    if link_type == 113:
        if position + 16 > end:
            return position, 0
        return position + 16, np.int64(be16(data, position + 14))
    if link_type == 276:
        if position + 20 > end:
            return position, 0
        return position + 20, np.int64(be16(data, position))
    if link_type in (0, 108):
        if position + 4 > end:
            return position, 0
        return position + 4, _loopback_type(np.int64(be32(data, position)))
    if link_type in (9, 50):
        return _ppp_header(data, position, end)
    return position, 0


@compiled
def _find_ip(data, position, end, ether_type):
    """Walk VLAN tags, MPLS, PPPoE and SNAP to the IP header: its position, EtherType, and the two VLAN IDs."""
    vlan = 0
    inner_vlan = 0
    tags = 0
    for _ in range(_MAX_TAGS + 2):
        if ether_type in (_ETH_IPV4, _ETH_IPV6):
            return position, ether_type, vlan, inner_vlan
        if ether_type in (0x8100, 0x88A8, 0x9100, 0x9200):
            if position + 4 > end or tags == _MAX_TAGS:
                break
            vid = np.int64(be16(data, position)) & 0x0FFF
            if tags == 0:
                vlan = vid
            elif tags == 1:
                inner_vlan = vid
            tags += 1
            ether_type = np.int64(be16(data, position + 2))
            position += 4
        elif ether_type in (0x8847, 0x8848):
            bottom = False
            while not bottom and position + 4 <= end:
                bottom = (data[position + 2] & 1) == 1
                position += 4
            if not bottom or position >= end:
                break
            ether_type = _ip_version(data, position, end)
            # A zero nibble is a pseudowire's control word (RFC 4385): Ethernet follows it.
            if ether_type == 0 and data[position] >> 4 == 0 and position + 18 <= end:
                ether_type = np.int64(be16(data, position + 16))
                position += 18
        elif ether_type == 0x8864:
            if position + 8 > end or data[position] != 0x11 or data[position + 1] != 0:
                break
            ether_type = _ppp_type(np.int64(be16(data, position + 6)))
            position += 8
        elif 0 < ether_type < 0x0600 and position + 8 <= end and be16(data, position) == 0xAAAA:
            # IEEE 802.3 length: LLC with a SNAP header carries the EtherType.
            if data[position + 2] != 0x03 or data[position + 3] != 0 or be16(data, position + 4) != 0:
                break
            ether_type = np.int64(be16(data, position + 6))
            position += 8
        else:
            break
    return position, 0, vlan, inner_vlan


@compiled
def _ipv6_extensions(data, position, end, proto):
    """Walk the extension headers (RFC 8200 section 4): position, protocol, fragment offset and flag, identification."""
    fragment = np.int64(0)
    ident = np.int64(0)
    for _ in range(_MAX_EXTENSION_HEADERS):
        if position + 8 > end:
            break
        if proto in (0, 43, 60, 135, 139, 140):
            proto = np.int64(data[position])
            position += (np.int64(data[position + 1]) + 1) * 8
        elif proto == _IPPROTO_AH:
            proto = np.int64(data[position])
            position += (np.int64(data[position + 1]) + 2) * 4
        elif proto == 44:
            proto = np.int64(data[position])
            fragment = np.int64(be16(data, position + 2)) & 0xFFF9
            ident = np.int64(be32(data, position + 4))
            position += 8
            if fragment >> 3:
                break
        else:
            break
    return position, proto, fragment, ident


@compiled
def _fragment_slot(packet, ident, proto):
    mixed = (packet.src_lo ^ (packet.dst_lo * np.uint64(0x9E3779B97F4A7C15))) + packet.src_hi + packet.dst_hi
    mixed = (mixed ^ np.uint64(ident) ^ (np.uint64(proto) << np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(mixed >> np.uint64(50))


@compiled
def _remember_fragment(fragments, packet, ident, proto):
    slot = fragments[_fragment_slot(packet, ident, proto)]
    slot.src_hi, slot.src_lo = packet.src_hi, packet.src_lo
    slot.dst_hi, slot.dst_lo = packet.dst_hi, packet.dst_lo
    slot.time_us = packet.time_us
    slot.ident, slot.proto, slot.used = ident, proto, 1
    slot.sport, slot.dport = packet.sport, packet.dport
    slot.tunnel_id = packet.tunnel_id


@compiled
def _recall_fragment(fragments, packet, ident, proto):
    """Give a non-first fragment the ports of its first one; False where that is not known."""
    slot = fragments[_fragment_slot(packet, ident, proto)]
    if (
        slot.used == 0
        or slot.ident != ident
        or slot.proto != proto
        or slot.tunnel_id != packet.tunnel_id
        or slot.src_lo != packet.src_lo
        or slot.dst_lo != packet.dst_lo
        or slot.src_hi != packet.src_hi
        or slot.dst_hi != packet.dst_hi
        or abs(packet.time_us - slot.time_us) > FRAGMENT_LIFETIME_US
    ):
        return False
    packet.sport, packet.dport = slot.sport, slot.dport
    return True


@compiled
def _transport(data, position, end, length, proto, fragment, ident, fragments, packet):
    """Ports, TCP fields and payload length. `end` is the end of captured IP payload, `length` its true length."""
    packet.sport = packet.dport = packet.window = 0
    packet.seq = packet.ack = 0
    packet.flags = packet.marks = 0
    payload = length
    if proto == _IPPROTO_TCP or proto in (_IPPROTO_UDP, 132, 33, 136):  # TCP first: nearly all packets
        if fragment >> 3:
            if not _recall_fragment(fragments, packet, ident, proto):
                packet.marks = MARK_FRAGMENT
        elif position + 4 <= end:
            packet.sport = be16(data, position)
            packet.dport = be16(data, position + 2)
            if proto == _IPPROTO_TCP:
                header = np.int64(20)
                if position + 20 <= end:
                    offset = np.int64(data[position + 12] >> 4) * 4
                    if offset >= 20:
                        header = offset
                        packet.seq = be32(data, position + 4)
                        packet.ack = be32(data, position + 8)
                        packet.flags = data[position + 13] & 0x1F
                        packet.window = be16(data, position + 14)
                        packet.marks = MARK_TCP_HEADER
                payload = max(length - header, 0)
            elif proto in (_IPPROTO_UDP, 136):
                payload = max(length - 8, 0)
            if fragment:
                _remember_fragment(fragments, packet, ident, proto)
    packet.payload_bytes = payload


@compiled
def _ip_packet(data, start, end, wire_end, ether_type, fragments, packet):
    """Read one IP packet into `packet`.

    Returns (valid, position and end of its captured payload, protocol, whether it may be looked into).
    Nothing is written when it is not valid, so that what was found further out stays.
    """
    if ether_type == _ETH_IPV4:
        if start + 20 > end or data[start] >> 4 != 4:
            return False, start, end, 0, False
        header = np.int64(data[start] & 0x0F) * 4
        total = np.int64(be16(data, start + 2))
        if total == 0:  # segmentation offload: the sender's stack left the length to the device
            total = wire_end - start
        if header < 20 or total < header:
            return False, start, end, 0, False
        position = start + header
        proto = np.int64(data[start + 9])
        flags = np.int64(be16(data, start + 6))
        fragment = ((flags & 0x1FFF) << 3) | ((flags >> 13) & 1)
        ident = np.int64(be16(data, start + 4))
        if proto == _IPPROTO_AH and not fragment >> 3 and position + 8 <= end:
            proto = np.int64(data[position])
            position += (np.int64(data[position + 1]) + 2) * 4
        packet.src_hi = packet.dst_hi = np.uint64(0)
        packet.src_lo = np.uint64(be32(data, start + 12)) | _MAPPED
        packet.dst_lo = np.uint64(be32(data, start + 16)) | _MAPPED
        packet.flow_label = 0
        packet.ip_version = 4
    else:
        if start + 40 > end or data[start] >> 4 != 6:
            return False, start, end, 0, False
        total = 40 + np.int64(be16(data, start + 4))
        if total == 40 and data[start + 6] != 59:  # jumbogram (RFC 2675) or segmentation offload
            total = max(wire_end - start, 40)
        captured_end = min(end, start + total)
        position, proto, fragment, ident = _ipv6_extensions(data, start + 40, captured_end, np.int64(data[start + 6]))
        packet.src_hi, packet.src_lo = be64(data, start + 8), be64(data, start + 16)
        packet.dst_hi, packet.dst_lo = be64(data, start + 24), be64(data, start + 32)
        packet.flow_label = be32(data, start) & 0x000FFFFF
        packet.ip_version = 6
    end = min(end, start + total)
    packet.ip_bytes = total
    packet.proto = proto
    packet.kind = KIND_FLOW
    _transport(data, position, end, max(start + total - position, 0), proto, fragment, ident, fragments, packet)
    return True, position, end, proto, fragment == 0


@compiled
def _gre_payload(data, position, end):
    """Position and EtherType of what GRE carries (RFC 2784, 2890; version 1: RFC 2637)."""
    if position + 4 > end:
        return position, 0
    flags = data[position]
    version = data[position + 1] & 0x07
    ether_type = np.int64(be16(data, position + 2))
    has_sequence = flags & 0x10
    after = position + 4
    if flags & 0xC0:  # checksum or routing present: four bytes for both
        after += 4
    if flags & 0x20:
        after += 4
    if has_sequence:
        after += 4
    if version == 1:
        if data[position + 1] & 0x80:
            after += 4
        return _ppp_header(data, after, end) if ether_type == 0x880B else (after, 0)
    if version != 0 or flags & 0x40:
        return after, 0
    if ether_type == 0x88BE and has_sequence:  # ERSPAN type II: eight bytes before the Ethernet frame
        return after + 8, _ETH_TEB
    return after, ether_type


@compiled
def _udp_payload(data, position, end, sport, dport):
    """Position, EtherType and VNI of what a UDP tunnel carries; EtherType 0 where it is none."""
    if dport in (4789, 8472):  # VXLAN (RFC 7348); Linux's own default port is 8472
        if position + 8 <= end and data[position] & 0x08:
            return position + 8, _ETH_TEB, np.int64(be32(data, position + 4)) >> 8
    elif dport == 6081:  # Geneve (RFC 8926)
        if position + 8 <= end and data[position] >> 6 == 0:
            options = np.int64(data[position] & 0x3F) * 4
            kind = np.int64(be16(data, position + 2))
            return position + 8 + options, kind, np.int64(be32(data, position + 4)) >> 8
    elif dport == 2152 or sport == 2152:  # GTP-U (3GPP TS 29.281): G-PDU only
        if position + 8 <= end and data[position] & 0xF0 == 0x30 and data[position + 1] == 0xFF:
            after = position + 8
            if data[position] & 0x07:
                after += 4
                extension = data[after - 1] if after <= end else np.uint8(0)
                if data[position] & 0x04 == 0:
                    extension = np.uint8(0)
                for _ in range(_MAX_EXTENSION_HEADERS):
                    if extension == 0 or after >= end or data[after] == 0:
                        break
                    after += np.int64(data[after]) * 4
                    extension = data[after - 1] if after <= end else np.uint8(0)
                if extension != 0:
                    return after, 0, np.int64(0)
            return after, _ip_version(data, after, end), np.int64(0)
    return position, 0, np.int64(0)


@compiled
def _look_inside(data, position, end, wire_end, proto, fragments, packet):
    """Follow tunnels inwards while each carries an IP packet that can be read whole."""
    for _ in range(_MAX_TUNNELS):
        tunnel_id = np.int64(packet.tunnel_id)
        if proto == _IPPROTO_IPIP:
            ether_type = _ETH_IPV4
        elif proto == _IPPROTO_IPV6:
            ether_type = _ETH_IPV6
        elif proto == _IPPROTO_GRE:
            position, ether_type = _gre_payload(data, position, end)
        else:
            position, ether_type, vni = _udp_payload(
                data, position + 8, end, np.int64(packet.sport), np.int64(packet.dport)
            )
            if ether_type:
                tunnel_id = vni
        vlan = np.int64(packet.vlan)
        inner_vlan = np.int64(packet.inner_vlan)
        if ether_type == _ETH_TEB:
            position, ether_type = _link_header(data, position, end, 1)
            position, ether_type, vlan, inner_vlan = _find_ip(data, position, end, ether_type)
        elif ether_type not in (_ETH_IPV4, _ETH_IPV6):
            position, ether_type, vlan, inner_vlan = _find_ip(data, position, end, ether_type)
        if ether_type == 0:
            return
        outer_tunnel_id = packet.tunnel_id
        packet.tunnel_id = tunnel_id
        valid, position, end, proto, whole = _ip_packet(data, position, end, wire_end, ether_type, fragments, packet)
        if not valid:
            packet.tunnel_id = outer_tunnel_id
            return
        packet.vlan, packet.inner_vlan = vlan, inner_vlan
        if not whole or proto not in (_IPPROTO_IPIP, _IPPROTO_IPV6, _IPPROTO_GRE, _IPPROTO_UDP):
            return


@compiled
def parse_frames(data, frames, count, inner, fragments, packets):
    """Turn `frames[:count]`, which lie in `data`, into `packets[:count]`.

    Args:
        data: uint8 (bytes,).
        frames: FRAME_DTYPE (>= count,), each wholly inside `data`.
        inner: look into GRE, VXLAN, Geneve, GTP-U and IP-in-IP, and count the innermost IP packet
            that can be read whole; a tunnel packet that is fragmented, cut or carries no IP counts as itself.
        fragments: FRAGMENT_DTYPE (FRAGMENT_SLOTS,), kept between calls for one capture.
        packets: PACKET_DTYPE (>= count,), overwritten.

    Returns:
        (packets of kind NOT_IP, packets of kind MALFORMED, smallest and largest time, frame bytes on the wire).
    """
    not_ip = 0
    malformed = 0
    first = np.int64(0x7FFFFFFFFFFFFFFF)
    last = -first
    wire_bytes = np.int64(0)
    for index in range(count):
        if index + 8 < count:
            ahead = frames[index + 8].offset
            prefetch(data, ahead)
            prefetch(data, ahead + 63)
        frame = frames[index]
        packet = packets[index]
        start = frame.offset
        end = start + np.int64(frame.captured)
        wire_end = start + np.int64(frame.wire)
        first = min(first, frame.time_us)
        last = max(last, frame.time_us)
        wire_bytes += np.int64(frame.wire)
        packet.time_us = frame.time_us
        position, ether_type = _link_header(data, start, end, np.int64(frame.link_type))
        if ether_type in (_ETH_IPV4, _ETH_IPV6):
            vlan = inner_vlan = 0
        else:
            position, ether_type, vlan, inner_vlan = _find_ip(data, position, end, ether_type)
        packet.vlan = vlan
        packet.inner_vlan = inner_vlan
        packet.tunnel_id = 0
        if ether_type == 0:
            packet.kind = KIND_NOT_IP
            not_ip += 1
            continue
        valid, position, end, proto, whole = _ip_packet(data, position, end, wire_end, ether_type, fragments, packet)
        if not valid:
            packet.kind = KIND_MALFORMED
            malformed += 1
            continue
        if (
            inner
            and whole
            and proto != _IPPROTO_TCP
            and proto in (_IPPROTO_IPIP, _IPPROTO_IPV6, _IPPROTO_GRE, _IPPROTO_UDP)
        ):
            _look_inside(data, position, end, wire_end, proto, fragments, packet)
    return not_ip, malformed, first, last, wire_bytes
