# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False
# (numba infers the types of kernels from their arguments)
"""The flow table's compiled part: find a packet's flow, add the packet to it, emit what is due.

The table is one slab of rows. A row is a RECORD_DTYPE record followed by what is needed to go on
with it; the same bytes are seen as `rows` (u8 words, for copying), `common`, `sides` (two
DIRECTION_DTYPE, forward and reverse), `side_work` and `work`. `index` is an open-addressing hash
table of row numbers with linear probing and deletion by shifting back.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dinnet.capture.memory import prefetch
from dinnet.capture.packet import (
    FLAG_ACK,
    FLAG_FIN,
    FLAG_PSH,
    FLAG_RST,
    FLAG_SYN,
    KIND_FLOW,
    MARK_TCP_HEADER,
)
from dinnet.flows.record import (
    BURST_GAP_US,
    CHECKPOINT_STEP,
    CHECKPOINT_STEP_US,
    CHECKPOINTS,
    FULL_SEGMENT_BYTES,
    RECORD_DTYPE,
    SPLT_PACKETS,
    SPLT_TURNS,
    UNSET,
    End,
)
from dinnet.jit import compiled

#: A closed TCP connection keeps its row this long, so that its last ACKs and retransmissions do
#: not start a flow of their own.
LINGER_US: Final = 5_000_000

SIDE_WORK_DTYPE: Final = np.dtype(
    [
        ("last_us", "<i8"),  # of this direction's last packet
        ("last_payload_us", "<i8"),
        ("burst_bytes", "<u8"),  # of the burst under way
    ]
)
WORK_DTYPE: Final = np.dtype(
    [
        ("last_us", "<i8"),
        ("last_checkpoint_us", "<i8"),
        ("next_checkpoint", "<u4"),  # packet count
        ("isn", "<u4"),  # sequence number of the forward SYN, where `isn_known` says so
        ("hash", "<u4"),
        ("flow_label", "<u4"),  # part of the key only where flow labels split flows
        ("last_payload_side", "u1"),  # 2 before the first payload
        ("fins", "u1"),  # bit 0: forward, bit 1: reverse
        ("closed", "u1"),  # End.FIN or End.RST, 0 while open
        ("used", "u1"),
        ("isn_known", "u1"),
        ("emitted", "u1"),  # the first checkpoint's record has been emitted
        ("forward_seen", "u1"),  # a forward packet, in this record or one before an active timeout
        ("payload_packets", "u1"),  # of both directions, counted up to SPLT_PACKETS
    ]
)
ROW_BYTES: Final = RECORD_DTYPE.itemsize + 2 * SIDE_WORK_DTYPE.itemsize + WORK_DTYPE.itemsize
assert ROW_BYTES % 8 == 0

RECORD_WORDS: Final = RECORD_DTYPE.itemsize // 8
ROW_WORDS: Final = ROW_BYTES // 8

#: Layout of the `state` vector that the kernels share with Python.
LIVE, FREE_HEAD, USED_ROWS, CURSOR = 0, 1, 2, 3
STATE_WORDS: Final = 4

EMIT_LAST, EMIT_FIRST, EMIT_ALL = 0, 1, 2

_FLOW = KIND_FLOW
_END_IDLE, _END_ACTIVE, _END_FIN, _END_RST, _END_REUSE, _END_CAPTURE = (
    int(End.IDLE),
    int(End.ACTIVE),
    int(End.FIN),
    int(End.RST),
    int(End.REUSE),
    int(End.CAPTURE),
)
_UNSET = UNSET
_MAX16 = 2**16 - 1
_MAX32 = 2**32 - 1
_MAX64 = np.uint64(2**64 - 1)
_FIRST_CHECKPOINT = CHECKPOINTS[0]
_LAST_FIXED = CHECKPOINTS[-1]
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_PREFETCH_BYTES = tuple(range(0, ROW_BYTES, 64))


@compiled
def _mix(value):
    """Stafford's variant 13 of the MurmurHash3 finalizer (as in SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def _hash(packet, seed, join_vlans, split_labels):
    """A keyed hash of the flow key that is the same for both directions."""
    # The secret multiplier keeps address and port from cancelling each other out, by chance or by design.
    multiplier = seed | np.uint64(1)
    source = _mix((packet.src_lo ^ seed) + packet.src_hi * _SPREAD + np.uint64(packet.sport) * multiplier)
    target = _mix((packet.dst_lo ^ seed) + packet.dst_hi * _SPREAD + np.uint64(packet.dport) * multiplier)
    rest = np.uint64(packet.proto) | (np.uint64(packet.tunnel_id) << np.uint64(8))
    if not join_vlans:
        rest ^= (np.uint64(packet.vlan) << np.uint64(32)) | (np.uint64(packet.inner_vlan) << np.uint64(48))
    if split_labels:
        rest ^= np.uint64(packet.flow_label) << np.uint64(40)
    mixed = _mix((source + target) ^ (rest * np.uint64(0xC2B2AE3D27D4EB4F)) ^ seed)
    return np.uint32(mixed >> np.uint64(32))


@compiled
def _side(common, label, packet, join_vlans, split_labels):
    """0 where the packet is a forward packet of the flow, 1 where a reverse one, -1 where it is another flow's."""
    if common.proto != packet.proto or common.ip_version != packet.ip_version or common.tunnel_id != packet.tunnel_id:
        return -1
    if not join_vlans and (common.vlan != packet.vlan or common.inner_vlan != packet.inner_vlan):
        return -1
    if split_labels and label != packet.flow_label:
        return -1
    if (
        common.src_lo == packet.src_lo
        and common.dst_lo == packet.dst_lo
        and common.sport == packet.sport
        and common.dport == packet.dport
        and common.src_hi == packet.src_hi
        and common.dst_hi == packet.dst_hi
    ):
        return 0
    if (
        common.src_lo == packet.dst_lo
        and common.dst_lo == packet.src_lo
        and common.sport == packet.dport
        and common.dport == packet.sport
        and common.src_hi == packet.dst_hi
        and common.dst_hi == packet.src_hi
    ):
        return 1
    return -1


@compiled
def _add(total, value):
    """Saturating 64-bit sum."""
    result = total + value
    return result if result >= total else _MAX64


@compiled
def _square(value):
    """Saturating 64-bit square."""
    return value * value if value <= np.uint64(_MAX32) else _MAX64


@compiled
def _count(total):
    """Saturating 32-bit increment."""
    return total + np.uint32(1) if total != np.uint32(_MAX32) else total


@compiled
def _bounded(value):
    """A 64-bit figure for a 32-bit field."""
    return np.uint32(min(value, np.uint64(_MAX32)))


@compiled
def _start(row, common, sides, side_work, work, packet, time_us, swapped, flow_hash):
    """Make a row an empty flow with the packet's key; `swapped`: the packet is the answering side's."""
    head = common[row]
    if swapped:
        head.src_hi, head.src_lo, head.sport = packet.dst_hi, packet.dst_lo, packet.dport
        head.dst_hi, head.dst_lo, head.dport = packet.src_hi, packet.src_lo, packet.sport
    else:
        head.src_hi, head.src_lo, head.sport = packet.src_hi, packet.src_lo, packet.sport
        head.dst_hi, head.dst_lo, head.dport = packet.dst_hi, packet.dst_lo, packet.dport
    head.tunnel_id = packet.tunnel_id
    head.vlan, head.inner_vlan = packet.vlan, packet.inner_vlan
    head.proto = packet.proto
    head.ip_version = packet.ip_version
    head.syn_seen = 0
    state = work[row]
    state.hash = flow_hash
    state.flow_label = packet.flow_label
    state.used = 1
    state.isn_known = 0
    state.forward_seen = 0
    _clear(row, common, sides, side_work, work, time_us)


@compiled
def _clear(row, common, sides, side_work, work, time_us):
    """Begin a new record in a row, keeping its key and direction."""
    head = common[row]
    head.first_us = time_us
    head.duration_us = np.uint64(0)
    head.flow_label = 0
    head.turns = 0
    head.checkpoint = 0
    head.end = 0
    head.splt_rev = 0
    for k in range(SPLT_PACKETS):
        head.splt_bytes[k] = 0
        head.splt_gap_us[k] = 0
    for k in range(SPLT_TURNS):
        head.turn_bytes[k] = 0
        head.turn_wait_us[k] = 0
    for side in range(2):
        sums = sides[row, side]
        sums.bytes = sums.payload_bytes = sums.len_sumsq = np.uint64(0)
        sums.iat_sum_us = sums.iat_sumsq_us = sums.gap_sum_us = sums.gap_sumsq_us = np.uint64(0)
        sums.burst_max_bytes = sums.window_sum = sums.turn_delay_sum_us = np.uint64(0)
        sums.packets = sums.payload_packets = 0
        sums.len_min = sums.iat_min_us = sums.window_min = np.uint32(_UNSET)
        sums.len_max = sums.iat_max_us = sums.turn_delay_max_us = 0
        sums.syn = sums.fin = sums.rst = sums.psh = sums.ack = 0
        sums.pure_ack = sums.full_segments = sums.bursts = 0
        side_work[row, side].burst_bytes = np.uint64(0)
    state = work[row]
    state.last_us = time_us
    state.last_checkpoint_us = time_us
    state.next_checkpoint = _FIRST_CHECKPOINT
    state.last_payload_side = 2
    state.fins = 0
    state.closed = 0
    state.emitted = 0
    state.payload_packets = 0


@compiled
def _add_packet(head, sums, work_side, other_work, state, packet, side, time_us):
    """Add one packet to the sums of its direction."""
    length = np.uint64(packet.ip_bytes)
    payload = np.uint64(packet.payload_bytes)
    if sums.packets:
        gap = np.uint64(time_us - work_side.last_us)
        sums.iat_sum_us = _add(sums.iat_sum_us, gap)
        sums.iat_sumsq_us = _add(sums.iat_sumsq_us, _square(gap))
        short = _bounded(gap)
        sums.iat_min_us = min(sums.iat_min_us, short)
        sums.iat_max_us = max(sums.iat_max_us, short)
    work_side.last_us = time_us
    sums.packets = _count(sums.packets)
    sums.bytes = _add(sums.bytes, length)
    sums.len_sumsq = _add(sums.len_sumsq, length * length)
    sums.len_min = min(sums.len_min, packet.ip_bytes)
    sums.len_max = max(sums.len_max, packet.ip_bytes)
    if payload:
        if sums.payload_packets == 0:
            sums.bursts = 1
            work_side.burst_bytes = payload
        else:
            gap = np.uint64(time_us - work_side.last_payload_us)
            if gap < np.uint64(BURST_GAP_US):
                work_side.burst_bytes = _add(work_side.burst_bytes, payload)
            else:
                sums.bursts = _count(sums.bursts)
                sums.gap_sum_us = _add(sums.gap_sum_us, gap)
                sums.gap_sumsq_us = _add(sums.gap_sumsq_us, _square(gap))
                work_side.burst_bytes = payload
        sums.burst_max_bytes = max(sums.burst_max_bytes, work_side.burst_bytes)
        sums.payload_bytes = _add(sums.payload_bytes, payload)
        sums.payload_packets = _count(sums.payload_packets)
        if packet.ip_bytes >= FULL_SEGMENT_BYTES:
            sums.full_segments = _count(sums.full_segments)
        if state.last_payload_side == 1 - side:
            head.turns = _count(head.turns)
            delay = np.uint64(time_us - other_work.last_payload_us)
            sums.turn_delay_sum_us = _add(sums.turn_delay_sum_us, delay)
            sums.turn_delay_max_us = max(sums.turn_delay_max_us, _bounded(delay))
        if state.payload_packets < SPLT_PACKETS or head.turns < SPLT_TURNS:
            _add_opening(head, work_side, other_work, state, payload, side, time_us)
        state.last_payload_side = side
        work_side.last_payload_us = time_us
    if packet.marks & MARK_TCP_HEADER:
        flags = packet.flags
        if flags & FLAG_ACK:
            sums.ack = _count(sums.ack)
            if not payload and not flags & (FLAG_SYN | FLAG_FIN | FLAG_RST):
                sums.pure_ack = _count(sums.pure_ack)
        if flags & FLAG_PSH:
            sums.psh = _count(sums.psh)
        if flags & (FLAG_SYN | FLAG_FIN | FLAG_RST):
            if flags & FLAG_SYN:
                sums.syn = _count(sums.syn)
            if flags & FLAG_FIN:
                sums.fin = _count(sums.fin)
                state.fins |= np.uint8(1 << side)
                if state.fins == 3 and state.closed == 0:
                    state.closed = _END_FIN
            if flags & FLAG_RST:
                sums.rst = _count(sums.rst)
                if state.closed == 0:
                    state.closed = _END_RST
        if not flags & FLAG_RST:
            sums.window_sum = _add(sums.window_sum, np.uint64(packet.window))
            sums.window_min = min(sums.window_min, np.uint32(packet.window))


@compiled
def _add_opening(head, work_side, other_work, state, payload, side, time_us):
    """Add a payload-carrying packet, already counted in `turns`, to what is kept of the flow's beginning."""
    if state.last_payload_side == 2:
        wait = _bounded(np.uint64(time_us - head.first_us))
    elif state.last_payload_side == side:
        wait = _bounded(np.uint64(time_us - work_side.last_payload_us))
    else:
        wait = _bounded(np.uint64(time_us - other_work.last_payload_us))
    turn = head.turns
    if turn < SPLT_TURNS:
        if state.last_payload_side != side:
            head.turn_wait_us[turn] = wait
        head.turn_bytes[turn] = _bounded(np.uint64(head.turn_bytes[turn]) + payload)
    k = state.payload_packets
    if k < SPLT_PACKETS:
        state.payload_packets = k + 1
        head.splt_gap_us[k] = wait
        head.splt_bytes[k] = np.uint16(min(payload, np.uint64(_MAX16)))
        if side:
            head.splt_rev |= np.uint32(1) << np.uint32(k)


@compiled
def _copy_out(rows, row, records, count, end):
    """Copy a row's record to `records[count]`, with the reason it is emitted for."""
    for word in range(RECORD_WORDS):
        records[count, word] = rows[row, word]
    # `end` is byte 74 of the record: the third byte of its tenth word (little-endian).
    records[count, 9] |= np.uint64(end) << np.uint64(16)


@compiled
def _unlink(index, mask, rows_hash, row):
    """Remove a row from the hash index, shifting back what probed past it."""
    slot = np.int64(rows_hash[row].hash) & mask
    while np.int64(index[slot] & np.uint64(_MAX32)) != row + 1:
        slot = (slot + 1) & mask
    hole = slot
    while True:
        slot = (slot + 1) & mask
        entry = index[slot]
        if entry == np.uint64(0):
            break
        home = np.int64(entry >> np.uint64(32)) & mask
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            index[hole] = entry
            hole = slot
    index[hole] = np.uint64(0)


@compiled
def reindex(index, work, used_rows):
    """Fill an empty index with every row in use."""
    mask = len(index) - 1
    for row in range(used_rows):
        if work[row].used:
            slot = np.int64(work[row].hash) & mask
            while index[slot] != np.uint64(0):
                slot = (slot + 1) & mask
            index[slot] = (np.uint64(work[row].hash) << np.uint64(32)) | np.uint64(row + 1)


@compiled
def _emit_end(rows, row, state, emit, end, records, count):
    """Emit an ended flow's record where the mode asks for it; returns the new count."""
    if emit == EMIT_FIRST and state.emitted:
        return count
    _copy_out(rows, row, records, count, end)
    return count + 1


@compiled
def update(
    packets, first, rows, common, sides, side_work, work, index, free, state,
    seed, idle_us, active_us, emit, join_vlans, split_labels, hashes, records,
):  # fmt: skip
    """Add `packets[first:]` to the table.

    Stops early when `records` could not take what one more packet may emit.

    Returns:
        (packets consumed in all, records written).
    """
    mask = len(index) - 1
    total = len(packets)
    room = len(records) - 2
    count = 0
    for position in range(first, total):
        if packets[position].kind == _FLOW:
            hashes[position] = _hash(packets[position], seed, join_vlans, split_labels)
    for position in range(first, total):
        if count > room:
            return position, count
        # Two steps ahead of use: first the index entry, then the row that it names.
        if position + 16 < total:
            prefetch(index, (np.int64(hashes[position + 16]) & mask) << 3)
        if position + 8 < total:
            ahead = np.int64(index[np.int64(hashes[position + 8]) & mask] & np.uint64(_MAX32)) - 1
            if ahead >= 0:
                base = ahead * ROW_BYTES
                for line in _PREFETCH_BYTES:
                    prefetch(rows, base + line)
        packet = packets[position]
        if packet.kind != _FLOW:
            continue
        flow_hash = hashes[position]
        slot = np.int64(flow_hash) & mask
        row = np.int64(-1)
        side = -1
        while True:
            entry = index[slot]
            if entry == np.uint64(0):
                break
            if np.uint32(entry >> np.uint64(32)) == flow_hash:
                candidate = np.int64(entry & np.uint64(_MAX32)) - 1
                side = _side(common[candidate], work[candidate].flow_label, packet, join_vlans, split_labels)
                if side >= 0:
                    row = candidate
                    break
            slot = (slot + 1) & mask
        time_us = packet.time_us
        flags = packet.flags if packet.marks & MARK_TCP_HEADER else np.uint8(0)
        opening = flags & (FLAG_SYN | FLAG_ACK) == FLAG_SYN
        renew = row < 0
        if not renew:
            flow = work[row]
            end = 0
            limit = min(idle_us, LINGER_US) if flow.closed else idle_us
            if time_us - flow.last_us > limit:
                end = flow.closed if flow.closed else _END_IDLE
            elif opening:
                if flow.closed:
                    end = flow.closed
                elif not (
                    (side == 0 and flow.isn_known and flow.isn == packet.seq)
                    or (side == 0 and common[row].syn_seen and not flow.forward_seen)
                ):
                    end = _END_REUSE
            if end:
                count = _emit_end(rows, row, flow, emit, end, records, count)
                renew = True
            else:
                time_us = max(time_us, flow.last_us)
                if time_us - common[row].first_us >= active_us:
                    count = _emit_end(rows, row, flow, emit, _END_ACTIVE, records, count)
                    fins = flow.fins
                    closed = flow.closed
                    _clear(row, common, sides, side_work, work, time_us)
                    flow.fins, flow.closed = fins, closed
        else:
            row = np.int64(state[FREE_HEAD]) - 1
            if row >= 0:
                state[FREE_HEAD] = free[row]
            else:
                row = np.int64(state[USED_ROWS])
                state[USED_ROWS] += 1
            index[slot] = (np.uint64(flow_hash) << np.uint64(32)) | np.uint64(row + 1)
            state[LIVE] += 1
        flow = work[row]
        if renew:
            answer = flags & (FLAG_SYN | FLAG_ACK) == (FLAG_SYN | FLAG_ACK)
            _start(row, common, sides, side_work, work, packet, time_us, answer, flow_hash)
            side = 1 if answer else 0
            if answer:
                common[row].syn_seen = 1
                flow.isn = packet.ack - np.uint32(1)
                flow.isn_known = 1
            elif opening:
                common[row].syn_seen = 1
                flow.isn = packet.seq
                flow.isn_known = 1
        head = common[row]
        flow.last_us = time_us
        head.duration_us = np.uint64(time_us - head.first_us)
        if side == 0:
            if sides[row, 0].packets == 0:
                head.flow_label = packet.flow_label
            if opening and not flow.forward_seen:
                flow.isn = packet.seq  # known only from the answer's acknowledgement until now
            flow.forward_seen = 1
        _add_packet(head, sides[row, side], side_work[row, side], side_work[row, 1 - side], flow, packet, side, time_us)
        packet_count = sides[row, 0].packets + sides[row, 1].packets
        if packet_count >= flow.next_checkpoint or (
            packet_count > _LAST_FIXED and time_us - flow.last_checkpoint_us >= CHECKPOINT_STEP_US
        ):
            head.checkpoint = _count(head.checkpoint)
            flow.last_checkpoint_us = time_us
            if packet_count < _LAST_FIXED:
                flow.next_checkpoint = np.uint32(packet_count * 2)
            else:
                flow.next_checkpoint = np.uint32(packet_count + CHECKPOINT_STEP)
            if emit == EMIT_ALL or (emit == EMIT_FIRST and not flow.emitted):
                _copy_out(rows, row, records, count, 0)
                count += 1
                flow.emitted = 1
    return total, count


@compiled
def sweep(rows, common, work, index, free, state, now_us, idle_us, emit, everything, records):
    """End every flow that is idle at `now_us` (`everything`: every flow) from row state[CURSOR] on.

    Stops when `records` is full. Sets state[CURSOR] to where to go on, 0 when done.

    Returns:
        Records written.
    """
    mask = len(index) - 1
    count = 0
    used_rows = np.int64(state[USED_ROWS])
    row = np.int64(state[CURSOR])
    while row < used_rows:
        if count >= len(records):
            state[CURSOR] = row
            return count
        flow = work[row]
        if flow.used:
            limit = min(idle_us, LINGER_US) if flow.closed else idle_us
            idle = now_us - flow.last_us > limit
            if idle or everything:
                end = flow.closed if flow.closed else (_END_IDLE if idle else _END_CAPTURE)
                count = _emit_end(rows, row, flow, emit, end, records, count)
                _unlink(index, mask, work, row)
                flow.used = 0
                free[row] = state[FREE_HEAD]
                state[FREE_HEAD] = row + 1
                state[LIVE] -= 1
        row += 1
    state[CURSOR] = 0
    return count
