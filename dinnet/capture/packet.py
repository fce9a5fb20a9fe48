"""Frames as they lie in a buffer, and the packet columns that every frame is turned into.

Whatever the file format, link type and tunnels, the flow table sees `PACKET_DTYPE` only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: One captured frame inside a byte buffer.
FRAME_DTYPE = np.dtype(
    [
        ("offset", "<i8"),  # of the frame's first byte in the buffer
        ("time_us", "<i8"),  # microseconds since 1970, floored from the capture's own resolution
        ("captured", "<u4"),  # bytes in the buffer
        ("wire", "<u4"),  # bytes on the wire
        ("link_type", "<u4"),  # LINKTYPE_ value
        ("reserved", "<u4"),
    ]
)

#: What a packet is to the flow table. Only FLOW packets belong to a flow; the others are counted by reason.
KIND_FLOW = 0
KIND_NOT_IP = 1
KIND_MALFORMED = 2  # an IP header that contradicts itself, or that the snap length cut off

#: Bits of `PACKET_DTYPE["flags"]`, as in the TCP header.
FLAG_FIN = 0x01
FLAG_SYN = 0x02
FLAG_RST = 0x04
FLAG_PSH = 0x08
FLAG_ACK = 0x10

#: Bits of `PACKET_DTYPE["marks"]`.
MARK_TCP_HEADER = 0x01  # TCP flags, sequence numbers and window are valid
MARK_FRAGMENT = 0x02  # a non-first fragment whose first fragment was not seen: ports are 0

#: One packet. IPv4 addresses are IPv4-mapped IPv6 addresses (RFC 4291 2.5.5.2); an address is two
#: 64-bit halves, each holding eight address bytes in network order read as a big-endian number.
PACKET_DTYPE = np.dtype(
    [
        ("time_us", "<i8"),
        ("src_hi", "<u8"),
        ("src_lo", "<u8"),
        ("dst_hi", "<u8"),
        ("dst_lo", "<u8"),
        ("ip_bytes", "<u4"),  # IP total length: header and payload, as on the wire
        ("payload_bytes", "<u4"),  # above TCP or UDP (above IP for other protocols); no Ethernet padding
        ("seq", "<u4"),
        ("ack", "<u4"),
        ("flow_label", "<u4"),  # IPv6 flow label, 20 bits; 0 for IPv4
        ("tunnel_id", "<u4"),  # VXLAN or Geneve VNI of the tunnel that the flow was found in, else 0
        ("sport", "<u2"),
        ("dport", "<u2"),
        ("window", "<u2"),
        ("vlan", "<u2"),  # outer VLAN ID, 0 where untagged or priority-tagged
        ("inner_vlan", "<u2"),  # second VLAN ID (QinQ), else 0
        ("proto", "u1"),
        ("flags", "u1"),
        ("kind", "u1"),
        ("marks", "u1"),
        ("ip_version", "u1"),
        ("reserved", "u1"),
    ]
)
assert FRAME_DTYPE.itemsize == 32
assert PACKET_DTYPE.itemsize == 80

Frames = NDArray[np.void]
"""A structured array of FRAME_DTYPE, shape (n,)."""

Packets = NDArray[np.void]
"""A structured array of PACKET_DTYPE, shape (n,)."""
