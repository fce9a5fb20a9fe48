// Flow records: the sums of each conversation, sent to the controller at each checkpoint. The rules, to the letter, are
// those of `dinnet.flows.update`. What differs: the place of a flow in the table is found by a hash, and a flow whose
// place is taken by another one that is still alive is not recorded but counted (`flow_collisions`).
#ifndef RECORDS_P4
#define RECORDS_P4

#include "metadata.p4"

const bit<48> BURST_GAP_US = 2000;
const bit<16> FULL_SEGMENT_BYTES = 1280;
const bit<32> FIRST_CHECKPOINT = 4;
const bit<32> LAST_FIXED_CHECKPOINT = 64;  // up to it each is twice the one before
const bit<32> CHECKPOINT_STEP = 64;
const bit<48> CHECKPOINT_STEP_US = 1000000;
const bit<48> IDLE_US = 120000000;
const bit<48> ACTIVE_US = 1800000000;
const bit<48> LINGER_US = 5000000;         // that a closed connection is kept for its last ACKs
const bit<4> SPLT_PACKETS = 8;
const bit<32> SPLT_TURNS = 6;
const bit<32> UNSET = 0xffffffff;          // of fields that hold a minimum

const bit<8> TCP_FIN = 0x01;
const bit<8> TCP_SYN = 0x02;
const bit<8> TCP_RST = 0x04;
const bit<8> TCP_PSH = 0x08;
const bit<8> TCP_ACK = 0x10;

const bit<2> NO_SIDE = 2;

typedef bit<144> endpoint_t;  // address ++ port

// Read a cell, change it, write it back: `cell` holds its value in between.
#define UPDATE(reg, index, cell, value) reg.read(cell, index); cell = value; reg.write(index, cell);
#define COUNT(reg) UPDATE(reg, side, n32, n32 |+| 1)
#define ADD(reg, amount) UPDATE(reg, side, n64, n64 |+| (amount))
#define LEAST(reg, amount) UPDATE(reg, side, n32, n32 < (amount) ? n32 : (amount))
#define MOST(reg, amount) UPDATE(reg, side, n32, n32 > (amount) ? n32 : (amount))
#define CLEAR(reg, value) reg.write(forward, value); reg.write(reverse, value);
#define CLEAR_OPENING(k) \
    splt_gap_us.write((slot << 3) + k, 0); splt_bytes.write((slot << 3) + k, 0); \
    turn_bytes.write((slot << 3) + k, 0); turn_wait_us.write((slot << 3) + k, 0);
#define BOUNDED(us) ((us) > (bit<48>) UNSET ? UNSET : (bit<32>) (us))
#define SIDE_REGISTER(bits, name) register<bit<bits>>(FLOW_SLOTS * 2) name;
#define FETCH(name) name.read(meta.record.fwd_##name, forward); name.read(meta.record.rev_##name, reverse);
#define FETCH_SPLT(k) \
    splt_gap_us.read(meta.record.splt_gap_us_##k, (slot << 3) + (k - 1)); \
    splt_bytes.read(meta.record.splt_bytes_##k, (slot << 3) + (k - 1));
#define FETCH_TURN(k) \
    turn_bytes.read(meta.record.turn_bytes_##k, (slot << 3) + (k - 1)); \
    turn_wait_us.read(meta.record.turn_wait_us_##k, (slot << 3) + (k - 1));

control FlowRecords(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    // Who the flow in a place is: its two endpoints in the order of their numbers, and the rest of its key.
    register<endpoint_t>(FLOW_SLOTS) low_endpoint;
    register<endpoint_t>(FLOW_SLOTS) high_endpoint;
    register<bit<56>>(FLOW_SLOTS) key_rest;     // protocol, version, VLAN IDs, flow label
    register<bit<1>>(FLOW_SLOTS) in_use;
    register<bit<1>>(FLOW_SLOTS) swapped;       // the higher endpoint is the forward sender

    // What is needed to go on with it.
    register<bit<48>>(FLOW_SLOTS) last_us;
    register<bit<48>>(FLOW_SLOTS) last_checkpoint_us;
    register<bit<32>>(FLOW_SLOTS) next_checkpoint;
    register<bit<32>>(FLOW_SLOTS) initial_seq;  // of the forward SYN
    register<bit<1>>(FLOW_SLOTS) initial_seq_known;
    register<bit<1>>(FLOW_SLOTS) forward_seen;
    register<bit<2>>(FLOW_SLOTS) last_payload_side;
    register<bit<2>>(FLOW_SLOTS) fins;
    register<end_t>(FLOW_SLOTS) closed;
    register<bit<4>>(FLOW_SLOTS) payloads;      // payload-carrying packets, counted up to SPLT_PACKETS
    SIDE_REGISTER(48, side_last_us)
    SIDE_REGISTER(48, side_last_payload_us)
    SIDE_REGISTER(64, burst_bytes)

    // The record.
    register<bit<48>>(FLOW_SLOTS) first_us;
    register<bit<20>>(FLOW_SLOTS) flow_label;
    register<bit<32>>(FLOW_SLOTS) turns;
    register<bit<32>>(FLOW_SLOTS) checkpoint;
    register<bit<1>>(FLOW_SLOTS) syn_seen;
    register<bit<8>>(FLOW_SLOTS) splt_rev;
    register<bit<32>>(FLOW_SLOTS * 8) splt_gap_us;
    register<bit<16>>(FLOW_SLOTS * 8) splt_bytes;
    register<bit<32>>(FLOW_SLOTS * 8) turn_bytes;
    register<bit<32>>(FLOW_SLOTS * 8) turn_wait_us;
    SIDE_REGISTER(64, bytes)
    SIDE_REGISTER(64, payload_bytes)
    SIDE_REGISTER(64, len_sumsq)
    SIDE_REGISTER(64, iat_sum_us)
    SIDE_REGISTER(64, iat_sumsq_us)
    SIDE_REGISTER(64, gap_sum_us)
    SIDE_REGISTER(64, gap_sumsq_us)
    SIDE_REGISTER(64, burst_max_bytes)
    SIDE_REGISTER(64, window_sum)
    SIDE_REGISTER(32, packets)
    SIDE_REGISTER(32, payload_packets)
    SIDE_REGISTER(32, len_min)
    SIDE_REGISTER(32, len_max)
    SIDE_REGISTER(32, iat_min_us)
    SIDE_REGISTER(32, iat_max_us)
    SIDE_REGISTER(32, window_min)
    SIDE_REGISTER(32, syn)
    SIDE_REGISTER(32, fin)
    SIDE_REGISTER(32, rst)
    SIDE_REGISTER(32, psh)
    SIDE_REGISTER(32, ack)
    SIDE_REGISTER(32, pure_ack)
    SIDE_REGISTER(32, full_segments)
    SIDE_REGISTER(32, bursts)
    SIDE_REGISTER(32, turn_delay_max_us)
    SIDE_REGISTER(64, turn_delay_sum_us)

    counter(1, CounterType.packets_and_bytes) flow_collisions;

    bit<32> n32;  // a cell under change
    bit<64> n64;
    bit<32> slot;
    bit<32> forward;  // indices of the flow's two directions
    bit<32> reverse;
    bit<32> side;     // of this packet's
    bit<32> other;
    endpoint_t low;
    endpoint_t high;
    bit<56> rest;
    bit<1> is_swapped;
    bool is_due;      // meta.record is to be sent

    // Copy the record in `slot` to where the digest is made of.
    action emit(end_t end) {
        endpoint_t one;
        endpoint_t two;
        bit<56> key;
        bit<1> turned;
        low_endpoint.read(one, slot);
        high_endpoint.read(two, slot);
        key_rest.read(key, slot);
        swapped.read(turned, slot);
        meta.record.src = turned == 1 ? two[143:16] : one[143:16];
        meta.record.sport = turned == 1 ? two[15:0] : one[15:0];
        meta.record.dst = turned == 1 ? one[143:16] : two[143:16];
        meta.record.dport = turned == 1 ? one[15:0] : two[15:0];
        meta.record.proto = key[55:48];
        meta.record.ip_version = key[47:44];
        meta.record.vlan = key[43:32];
        meta.record.inner_vlan = key[31:20];
        meta.record.end = (bit<8>) end;
        meta.record.ingress_port = std.ingress_port;
        first_us.read(meta.record.first_us, slot);
        bit<48> last;
        last_us.read(last, slot);
        meta.record.duration_us = (bit<64>) (last - meta.record.first_us);
        flow_label.read(meta.record.flow_label, slot);
        turns.read(meta.record.turns, slot);
        checkpoint.read(meta.record.checkpoint, slot);
        syn_seen.read(meta.record.syn_seen, slot);
        splt_rev.read(meta.record.splt_rev, slot);
        FETCH_SPLT(1) FETCH_SPLT(2) FETCH_SPLT(3) FETCH_SPLT(4)
        FETCH_SPLT(5) FETCH_SPLT(6) FETCH_SPLT(7) FETCH_SPLT(8)
        FETCH_TURN(1) FETCH_TURN(2) FETCH_TURN(3) FETCH_TURN(4) FETCH_TURN(5) FETCH_TURN(6)
        FETCH(bytes) FETCH(payload_bytes) FETCH(len_sumsq)
        FETCH(iat_sum_us) FETCH(iat_sumsq_us) FETCH(gap_sum_us) FETCH(gap_sumsq_us)
        FETCH(burst_max_bytes) FETCH(window_sum) FETCH(packets) FETCH(payload_packets)
        FETCH(len_min) FETCH(len_max) FETCH(iat_min_us) FETCH(iat_max_us) FETCH(window_min)
        FETCH(syn) FETCH(fin) FETCH(rst) FETCH(psh) FETCH(ack) FETCH(pure_ack) FETCH(full_segments)
        FETCH(bursts) FETCH(turn_delay_max_us) FETCH(turn_delay_sum_us)
        is_due = true;
    }

    // Begin a new record in `slot`, keeping key and direction.
    action clear(bit<48> now) {
        first_us.write(slot, now);
        last_us.write(slot, now);
        last_checkpoint_us.write(slot, now);
        next_checkpoint.write(slot, FIRST_CHECKPOINT);
        last_payload_side.write(slot, NO_SIDE);
        payloads.write(slot, 0);
        flow_label.write(slot, 0);
        turns.write(slot, 0);
        checkpoint.write(slot, 0);
        splt_rev.write(slot, 0);
        CLEAR_OPENING(0) CLEAR_OPENING(1) CLEAR_OPENING(2) CLEAR_OPENING(3)
        CLEAR_OPENING(4) CLEAR_OPENING(5) CLEAR_OPENING(6) CLEAR_OPENING(7)
        CLEAR(burst_bytes, 0)
        CLEAR(bytes, 0) CLEAR(payload_bytes, 0) CLEAR(len_sumsq, 0)
        CLEAR(iat_sum_us, 0) CLEAR(iat_sumsq_us, 0) CLEAR(gap_sum_us, 0) CLEAR(gap_sumsq_us, 0)
        CLEAR(burst_max_bytes, 0) CLEAR(window_sum, 0) CLEAR(packets, 0) CLEAR(payload_packets, 0)
        CLEAR(len_min, UNSET) CLEAR(len_max, 0) CLEAR(iat_min_us, UNSET) CLEAR(iat_max_us, 0) CLEAR(window_min, UNSET)
        CLEAR(syn, 0) CLEAR(fin, 0) CLEAR(rst, 0) CLEAR(psh, 0) CLEAR(ack, 0) CLEAR(pure_ack, 0)
        CLEAR(full_segments, 0) CLEAR(bursts, 0) CLEAR(turn_delay_max_us, 0) CLEAR(turn_delay_sum_us, 0)
    }

    apply {
        is_due = false;
        // The place of this packet's flow.
        endpoint_t source = meta.src ++ meta.sport;
        endpoint_t target = meta.dst ++ meta.dport;
        bit<1> is_high_source = source > target ? 1w1 : 1w0;
        low = is_high_source == 1 ? target : source;
        high = is_high_source == 1 ? source : target;
        bit<4> version = hdr.ipv4.isValid() ? 4w4 : 4w6;
        rest = meta.proto ++ version ++ meta.vlan ++ meta.inner_vlan ++ meta.key_label;
        hash(slot, HashAlgorithm.crc32, 32w0, { low, high, rest }, (bit<32>) FLOW_SLOTS);
        forward = slot << 1;
        reverse = forward + 1;

        bit<48> now = std.ingress_global_timestamp;
        bit<8> flags = hdr.tcp.isValid() ? hdr.tcp.flags : 0;
        bool opening = flags & (TCP_SYN | TCP_ACK) == TCP_SYN;
        bool answering = flags & (TCP_SYN | TCP_ACK) == TCP_SYN | TCP_ACK;

        // Is it the flow that has the place?
        bit<1> used; in_use.read(used, slot);
        endpoint_t low_there; low_endpoint.read(low_there, slot);
        endpoint_t high_there; high_endpoint.read(high_there, slot);
        bit<56> rest_there; key_rest.read(rest_there, slot);
        bit<48> last; last_us.read(last, slot);
        bit<48> started; first_us.read(started, slot);
        end_t is_closed; closed.read(is_closed, slot);
        swapped.read(is_swapped, slot);
        bool same = used == 1 && low_there == low && high_there == high && rest_there == rest;
        bit<48> limit = is_closed == end_t.LIVE ? IDLE_US : LINGER_US;
        bool over = now > last && now - last > limit;
        bool on_forward = low == high || is_high_source == is_swapped;

        bool renew = !same;
        bool collision = false;
        end_t end = end_t.LIVE;
        if (same) {
            bit<1> known; initial_seq_known.read(known, slot);
            bit<32> isn; initial_seq.read(isn, slot);
            bit<1> syn_there; syn_seen.read(syn_there, slot);
            bit<1> forward_there; forward_seen.read(forward_there, slot);
            if (over) {
                end = is_closed == end_t.LIVE ? end_t.IDLE : is_closed;
            } else if (opening) {
                if (is_closed != end_t.LIVE) {
                    end = is_closed;
                } else if (!(on_forward && ((known == 1 && isn == hdr.tcp.seq)
                                            || (syn_there == 1 && forward_there == 0)))) {
                    end = end_t.REUSE;
                }
            }
            if (end != end_t.LIVE) {
                emit(end);
                renew = true;
            } else {
                now = now > last ? now : last;
                if (now - started >= ACTIVE_US) {
                    emit(end_t.ACTIVE);
                    clear(now);
                }
            }
        } else if (used == 1) {
            if (over) {
                emit(is_closed == end_t.LIVE ? end_t.IDLE : is_closed);
            } else {
                collision = true;
                flow_collisions.count(0);
            }
        }

        if (!collision) {
            if (renew) {
                in_use.write(slot, 1);
                low_endpoint.write(slot, low);
                high_endpoint.write(slot, high);
                key_rest.write(slot, rest);
                // An answer shows who asked.
                is_swapped = answering ? 1w1 - is_high_source : is_high_source;
                swapped.write(slot, is_swapped);
                on_forward = !answering;
                fins.write(slot, 0);
                closed.write(slot, end_t.LIVE);
                forward_seen.write(slot, 0);
                syn_seen.write(slot, opening || answering ? 1w1 : 1w0);
                initial_seq_known.write(slot, opening || answering ? 1w1 : 1w0);
                initial_seq.write(slot, answering ? hdr.tcp.ack - 1 : hdr.tcp.seq);
                started = now;
                clear(now);
            }
            side = on_forward ? forward : reverse;
            other = on_forward ? reverse : forward;
            bit<2> side_number = on_forward ? 2w0 : 2w1;
            last_us.write(slot, now);
            first_us.read(started, slot);

            if (on_forward) {
                packets.read(n32, forward);
                if (n32 == 0) {
                    flow_label.write(slot, meta.flow_label);
                }
                bit<1> forward_there; forward_seen.read(forward_there, slot);
                if (opening && forward_there == 0) {
                    initial_seq.write(slot, hdr.tcp.seq);  // known only from the answer's acknowledgement until now
                }
                forward_seen.write(slot, 1);
            }

            // Every packet.
            bit<64> length = (bit<64>) meta.ip_bytes;
            bit<64> payload = (bit<64>) meta.payload_bytes;
            packets.read(n32, side);
            if (n32 != 0) {
                bit<48> before; side_last_us.read(before, side);
                bit<48> gap = now - before;
                ADD(iat_sum_us, (bit<64>) gap)
                ADD(iat_sumsq_us, gap > (bit<48>) UNSET ? 64w0xffffffffffffffff : (bit<64>) gap * (bit<64>) gap)
                bit<32> bounded = BOUNDED(gap);
                LEAST(iat_min_us, bounded)
                MOST(iat_max_us, bounded)
            }
            side_last_us.write(side, now);
            COUNT(packets)
            ADD(bytes, length)
            ADD(len_sumsq, length * length)
            LEAST(len_min, (bit<32>) meta.ip_bytes)
            MOST(len_max, (bit<32>) meta.ip_bytes)

            if (payload != 0) {
                bit<48> before; side_last_payload_us.read(before, side);
                bit<48> other_before; side_last_payload_us.read(other_before, other);
                bit<2> speaker; last_payload_side.read(speaker, slot);
                bit<64> burst; burst_bytes.read(burst, side);
                payload_packets.read(n32, side);
                if (n32 == 0) {
                    bursts.write(side, 1);
                    burst = payload;
                } else if (now - before < BURST_GAP_US) {
                    burst = burst |+| payload;
                } else {
                    bit<48> gap = now - before;
                    COUNT(bursts)
                    ADD(gap_sum_us, (bit<64>) gap)
                    ADD(gap_sumsq_us, gap > (bit<48>) UNSET ? 64w0xffffffffffffffff : (bit<64>) gap * (bit<64>) gap)
                    burst = payload;
                }
                burst_bytes.write(side, burst);
                UPDATE(burst_max_bytes, side, n64, n64 > burst ? n64 : burst)
                ADD(payload_bytes, payload)
                COUNT(payload_packets)
                if (meta.ip_bytes >= FULL_SEGMENT_BYTES) {
                    COUNT(full_segments)
                }

                // A turn: the other side spoke last.
                bit<32> turn; turns.read(turn, slot);
                if (speaker == 1 - side_number) {
                    turn = turn |+| 1;
                    turns.write(slot, turn);
                    bit<48> delay = now - other_before;
                    ADD(turn_delay_sum_us, (bit<64>) delay)
                    MOST(turn_delay_max_us, BOUNDED(delay))
                }

                // The flow's beginning is kept packet by packet.
                bit<48> wait = now - started;
                if (speaker == side_number) {
                    wait = now - before;
                } else if (speaker != NO_SIDE) {
                    wait = now - other_before;
                }
                bit<32> bounded_wait = BOUNDED(wait);
                if (turn < SPLT_TURNS) {
                    bit<32> place = (slot << 3) + turn;
                    if (speaker != side_number) {
                        turn_wait_us.write(place, bounded_wait);
                    }
                    UPDATE(turn_bytes, place, n32, n32 |+| (bit<32>) payload)
                }
                bit<4> k; payloads.read(k, slot);
                if (k < SPLT_PACKETS) {
                    bit<32> place = (slot << 3) + (bit<32>) k;
                    splt_gap_us.write(place, bounded_wait);
                    splt_bytes.write(place, meta.payload_bytes);
                    if (!on_forward) {
                        bit<8> bits; splt_rev.read(bits, slot);
                        splt_rev.write(slot, bits | 8w1 << k);
                    }
                    payloads.write(slot, k + 1);
                }
                last_payload_side.write(slot, side_number);
                side_last_payload_us.write(side, now);
            }

            if (hdr.tcp.isValid()) {
                if (flags & TCP_ACK != 0) {
                    COUNT(ack)
                    if (payload == 0 && flags & (TCP_SYN | TCP_FIN | TCP_RST) == 0) {
                        COUNT(pure_ack)
                    }
                }
                if (flags & TCP_PSH != 0) {
                    COUNT(psh)
                }
                if (flags & TCP_SYN != 0) {
                    COUNT(syn)
                }
                if (flags & TCP_FIN != 0) {
                    COUNT(fin)
                    bit<2> both; fins.read(both, slot);
                    both = both | (on_forward ? 2w1 : 2w2);
                    fins.write(slot, both);
                    closed.read(is_closed, slot);
                    if (both == 3 && is_closed == end_t.LIVE) {
                        closed.write(slot, end_t.FIN);
                    }
                }
                if (flags & TCP_RST != 0) {
                    COUNT(rst)
                    closed.read(is_closed, slot);
                    if (is_closed == end_t.LIVE) {
                        closed.write(slot, end_t.RST);
                    }
                } else {
                    ADD(window_sum, (bit<64>) hdr.tcp.window)
                    LEAST(window_min, (bit<32>) hdr.tcp.window)
                }
            }

            // Is a record due?
            bit<32> forward_packets; packets.read(forward_packets, forward);
            bit<32> reverse_packets; packets.read(reverse_packets, reverse);
            bit<32> count = forward_packets + reverse_packets;
            bit<32> due; next_checkpoint.read(due, slot);
            bit<48> checkpoint_before; last_checkpoint_us.read(checkpoint_before, slot);
            if (count >= due || (count > LAST_FIXED_CHECKPOINT && now - checkpoint_before >= CHECKPOINT_STEP_US)) {
                UPDATE(checkpoint, slot, n32, n32 |+| 1)
                last_checkpoint_us.write(slot, now);
                next_checkpoint.write(slot, count < LAST_FIXED_CHECKPOINT ? count << 1 : count + CHECKPOINT_STEP);
                emit(end_t.LIVE);
            }
        }
        if (is_due) {
            // In one place only: each place would be a digest of its own to BMv2, and only one of them configured.
            digest<flow_record_t>(1, meta.record);
        }
    }
}

#endif
