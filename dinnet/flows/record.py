"""The flow record: the integer sums kept for one conversation, the same from every producer.

A record is emitted at each checkpoint and at the flow's end. It is bidirectional: `fwd_` is the
direction of the sender of the first SYN where one was seen, else of the first packet. Every sum
saturates; none wraps. Times are in microseconds by the packets' own clock, which never runs
backwards within a flow: an earlier time stamp counts as the latest one seen.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Packets of one direction that carry payload and are less than this apart belong to one burst.
BURST_GAP_US: Final = 2_000

#: A payload-carrying packet of at least this IP length is a full segment. IPv6's minimum MTU
#: (RFC 8200 section 5) is used, since a sender with more to send fills at least that on every path.
FULL_SEGMENT_BYTES: Final = 1_280

#: Packet counts at which a record is emitted; after the last one, every CHECKPOINT_STEP packets or
#: CHECKPOINT_STEP_US after the previous checkpoint, whichever comes first.
CHECKPOINTS: Final = (4, 8, 16, 32, 64)
CHECKPOINT_STEP: Final = 64
CHECKPOINT_STEP_US: Final = 1_000_000

#: How many payload-carrying packets, and how many turns, of a flow's beginning are kept one by one. A turn is a run
#: of payload-carrying packets of one direction; the k-th one ends where the other side's k+1-th begins.
SPLT_PACKETS: Final = 8
SPLT_TURNS: Final = 6


class End(IntEnum):
    """Why a record was emitted."""

    LIVE = 0  #: a checkpoint: the flow goes on
    IDLE = 1  #: no packet for the idle timeout
    ACTIVE = 2  #: the active timeout cut a long flow; its next record goes on in the same direction
    FIN = 3  #: TCP FIN from both sides
    RST = 4  #: TCP RST
    REUSE = 5  #: a new connection took the same ports
    CAPTURE = 6  #: the capture ended


#: Kept one by one of a flow's beginning: name, type, how many, meaning. In the record they are named name_1, name_2
#: and so on, and are 0 where there has been no such packet or turn. Sequences of packet lengths and times (SPLT) tell
#: protocols apart by what they open with.
OPENING_FIELDS: Final = [
    ("splt_gap_us", "<u4", SPLT_PACKETS),  # since the payload packet before; the first: since the flow's first packet
    ("turn_bytes", "<u4", SPLT_TURNS),  # payload
    ("turn_wait_us", "<u4", SPLT_TURNS),  # since the end of the turn before; the first: since the flow's first packet
    ("splt_bytes", "<u2", SPLT_PACKETS),  # payload
]

#: Key and common fields. Addresses are as in `dinnet.capture.packet.PACKET_DTYPE`.
_COMMON: Final = [
    ("src_hi", "<u8"),
    ("src_lo", "<u8"),
    ("dst_hi", "<u8"),
    ("dst_lo", "<u8"),
    ("first_us", "<i8"),  # time of the first packet, microseconds since 1970
    ("duration_us", "<u8"),  # last packet - first packet
    ("flow_label", "<u4"),  # IPv6 flow label of the first forward packet
    ("tunnel_id", "<u4"),  # VXLAN or Geneve VNI, else 0
    ("turns", "<u4"),  # times that a payload-carrying packet went the other way than the one before it
    ("checkpoint", "<u4"),  # checkpoints passed: 1 = 4 packets ... 5 = 64, 6 and up = later ones; 0 = none yet
    ("sport", "<u2"),
    ("dport", "<u2"),
    ("vlan", "<u2"),
    ("inner_vlan", "<u2"),
    ("proto", "u1"),
    ("ip_version", "u1"),
    ("end", "u1"),  # an `End`
    ("syn_seen", "u1"),  # 1 where the direction was set by a SYN or SYN-ACK
    ("splt_rev", "<u4"),  # bit k - 1: the k-th payload-carrying packet was a reverse one
]

#: Fields kept for each direction apart, named fwd_* and rev_* in the record.
DIRECTION_FIELDS: Final = [
    ("bytes", "<u8"),  # sum of IP total lengths
    ("payload_bytes", "<u8"),
    ("len_sumsq", "<u8"),  # sum of squares of IP length
    ("iat_sum_us", "<u8"),  # inter-arrival times of this direction's packets: packets - 1 of them
    ("iat_sumsq_us", "<u8"),
    ("gap_sum_us", "<u8"),  # gaps between bursts (end of one to start of the next): bursts - 1 of them
    ("gap_sumsq_us", "<u8"),
    ("burst_max_bytes", "<u8"),  # payload bytes of the largest burst; their sum is payload_bytes
    ("window_sum", "<u8"),  # TCP window as sent, unscaled, over packets without RST; 0 for other protocols
    ("packets", "<u4"),
    ("payload_packets", "<u4"),
    ("len_min", "<u4"),
    ("len_max", "<u4"),
    ("iat_min_us", "<u4"),  # all ones (2**32 - 1) before the second packet
    ("iat_max_us", "<u4"),
    ("window_min", "<u4"),  # all ones (2**32 - 1) where no window was seen
    ("syn", "<u4"),
    ("fin", "<u4"),
    ("rst", "<u4"),
    ("psh", "<u4"),
    ("ack", "<u4"),
    ("pure_ack", "<u4"),  # ACK without payload, SYN, FIN or RST
    ("full_segments", "<u4"),
    ("bursts", "<u4"),
    ("turn_delay_max_us", "<u4"),  # longest wait from the other side's last payload packet to this side's answer
    ("turn_delay_sum_us", "<u8"),  # sum of those waits: one for each turn towards this direction
]

#: Fields that hold all ones until they have a value.
UNSET: Final = 2**32 - 1

RECORD_DTYPE: Final = np.dtype(
    [
        *_COMMON,
        *((f"{name}_{k}", kind) for name, kind, count in OPENING_FIELDS for k in range(1, count + 1)),
        *((f"{side}_{name}", kind) for side in ("fwd", "rev") for name, kind in DIRECTION_FIELDS),
    ]
)
COMMON_DTYPE: Final = np.dtype([*_COMMON, *((name, kind, (count,)) for name, kind, count in OPENING_FIELDS)])
DIRECTION_DTYPE: Final = np.dtype(DIRECTION_FIELDS)

assert COMMON_DTYPE.itemsize == 176
assert DIRECTION_DTYPE.itemsize == 144
assert RECORD_DTYPE.itemsize == 464

Records = NDArray[np.void]
"""A structured array of RECORD_DTYPE, shape (n,)."""


def format_address(hi: int, lo: int) -> str:
    """The usual text of an address given as two 64-bit halves."""
    import ipaddress

    value = (int(hi) << 64) | int(lo)
    if value >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(value & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(value))
