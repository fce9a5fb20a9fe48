/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Flow records, by the rules of dinnet.flows.update and p4/include/records.p4.
 *
 * The table is an array of sets with a lock each, not the kernel's LRU hash: that one gives an element to another flow
 * while a program on another CPU still writes to it, and two flows must never be mixed.
 */
#ifndef DINNET_RECORDS_H
#define DINNET_RECORDS_H

#include "lock.h"
#include "parse.h"

#define BURST_GAP_US 2000
#define FULL_SEGMENT_BYTES 1280
#define FIRST_CHECKPOINT 4
#define LAST_FIXED_CHECKPOINT 64 /* up to it each is twice the one before */
#define CHECKPOINT_STEP 64
#define CHECKPOINT_STEP_US 1000000ULL
#define IDLE_US 120000000ULL
#define ACTIVE_US 1800000000ULL
#define LINGER_US 5000000ULL
#define SPLT_PACKETS 8
#define SPLT_TURNS 6
#define UNSET 0xffffffffU
#define MAX64 (~0ULL)
#define NO_SIDE 2

static __always_inline __u64 add64(__u64 total, __u64 value)
{
	__u64 sum = total + value;

	return sum < total ? MAX64 : sum;
}

static __always_inline __u64 square(__u64 value)
{
	return value > UNSET ? MAX64 : value * value;
}

static __always_inline __u32 bounded(__u64 value)
{
	return value > UNSET ? UNSET : value;
}

#define COUNT(field) ((field) += (field) != UNSET)
#define LEAST(field, value) ((field) = (value) < (field) ? (value) : (field))
#define MOST(field, value) ((field) = (value) > (field) ? (value) : (field))

static __always_inline __u64 mix(__u64 value)
{
	value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ULL;
	value = (value ^ value >> 27) * 0x94D049BB133111EBULL;
	return value ^ value >> 31;
}

/* The same for both directions. */
static __always_inline __u32 flow_hash(struct packet *p)
{
	__u64 multiplier = hash_seed | 1;
	__u64 src = mix((p->src_lo ^ hash_seed) + p->src_hi * 0x9E3779B97F4A7C15ULL + p->sport * multiplier);
	__u64 dst = mix((p->dst_lo ^ hash_seed) + p->dst_hi * 0x9E3779B97F4A7C15ULL + p->dport * multiplier);
	__u64 rest = p->proto | (__u64)p->key_label << 8 | (__u64)p->vlan << 32 | (__u64)p->inner_vlan << 48;

	return mix((src + dst) ^ rest * 0xC2B2AE3D27D4EB4FULL ^ hash_seed) >> 32;
}

/* 0: the packet is a forward one of the flow, 1: a reverse one, -1: another flow's. */
static __always_inline int flow_side(struct flow *flow, struct packet *p)
{
	struct flow_record *r = &flow->record;

	if (!flow->work.used || r->proto != p->proto || r->ip_version != p->version || r->vlan != p->vlan ||
	    r->inner_vlan != p->inner_vlan || flow->work.flow_label != p->key_label)
		return -1;
	if (r->src_lo == p->src_lo && r->dst_lo == p->dst_lo && r->sport == p->sport && r->dport == p->dport &&
	    r->src_hi == p->src_hi && r->dst_hi == p->dst_hi)
		return 0;
	if (r->src_lo == p->dst_lo && r->dst_lo == p->src_lo && r->sport == p->dport && r->dport == p->sport &&
	    r->src_hi == p->dst_hi && r->dst_hi == p->src_hi)
		return 1;
	return -1;
}

static __always_inline void clear_side(struct flow_side *side)
{
	__builtin_memset(side, 0, sizeof(*side));
	side->len_min = side->iat_min_us = side->window_min = UNSET;
}

/* Begin a new record, keeping key and direction. */
static __always_inline void clear_flow(struct flow *flow, __u64 now)
{
	struct flow_record *r = &flow->record;
	struct flow_work *w = &flow->work;

	r->first_us = now;
	r->duration_us = 0;
	r->flow_label = r->turns = r->checkpoint = r->splt_rev = 0;
	__builtin_memset(r->splt_gap_us, 0, sizeof(r->splt_gap_us));
	__builtin_memset(r->turn_bytes, 0, sizeof(r->turn_bytes));
	__builtin_memset(r->turn_wait_us, 0, sizeof(r->turn_wait_us));
	__builtin_memset(r->splt_bytes, 0, sizeof(r->splt_bytes));
	clear_side(&r->sides[0]);
	clear_side(&r->sides[1]);
	w->last_us = w->last_checkpoint_us = now;
	w->next_checkpoint = FIRST_CHECKPOINT;
	w->last_payload_side = NO_SIDE;
	w->payload_packets = 0;
	w->burst_bytes[0] = w->burst_bytes[1] = 0;
}

static __always_inline void start_flow(struct flow *flow, struct packet *p, __u64 now, int swapped)
{
	struct flow_record *r = &flow->record;
	struct flow_work *w = &flow->work;

	r->src_hi = swapped ? p->dst_hi : p->src_hi;
	r->src_lo = swapped ? p->dst_lo : p->src_lo;
	r->sport = swapped ? p->dport : p->sport;
	r->dst_hi = swapped ? p->src_hi : p->dst_hi;
	r->dst_lo = swapped ? p->src_lo : p->dst_lo;
	r->dport = swapped ? p->sport : p->dport;
	r->vlan = p->vlan;
	r->inner_vlan = p->inner_vlan;
	r->tunnel_id = 0;
	r->proto = p->proto;
	r->ip_version = p->version;
	r->end = LIVE;
	r->syn_seen = 0;
	w->flow_label = p->key_label;
	w->fins = w->closed = 0;
	w->isn = 0;
	w->isn_known = w->forward_seen = 0;
	w->used = 1;
	w->ingress_port = p->ingress_port;
	clear_flow(flow, now);
}

static __always_inline __u64 time_limit(struct flow *flow)
{
	return flow->work.closed ? LINGER_US : IDLE_US;
}

static __always_inline int is_over(struct flow *flow, __u64 now)
{
	return now > flow->work.last_us && now - flow->work.last_us > time_limit(flow);
}

static __always_inline void add_opening(struct flow *flow, struct packet *p, int side, __u64 now)
{
	struct flow_record *r = &flow->record;
	struct flow_work *w = &flow->work;
	__u64 wait = now - r->first_us;
	__u32 turn = r->turns, k = w->payload_packets;

	if (w->last_payload_side == side)
		wait = now - w->side_last_payload_us[side & 1];
	else if (w->last_payload_side != NO_SIDE)
		wait = now - w->side_last_payload_us[1 - (side & 1)];
	if (turn < SPLT_TURNS) {
		__u32 bytes = r->turn_bytes[turn] + p->payload_bytes;

		if (w->last_payload_side != side)
			r->turn_wait_us[turn] = bounded(wait);
		r->turn_bytes[turn] = bytes < p->payload_bytes ? UNSET : bytes;
	}
	if (k < SPLT_PACKETS) {
		w->payload_packets = k + 1;
		r->splt_gap_us[k] = bounded(wait);
		r->splt_bytes[k] = p->payload_bytes;
		if (side)
			r->splt_rev |= 1U << k;
	}
}

static __always_inline void add_payload(struct flow *flow, struct packet *p, struct flow_side *s, int side, __u64 now)
{
	struct flow_record *r = &flow->record;
	struct flow_work *w = &flow->work;
	__u32 own = side & 1, other = 1 - own;
	__u64 payload = p->payload_bytes;

	if (!s->payload_packets) {
		s->bursts = 1;
		w->burst_bytes[own] = payload;
	} else {
		__u64 gap = now - w->side_last_payload_us[own];

		if (gap < BURST_GAP_US) {
			w->burst_bytes[own] = add64(w->burst_bytes[own], payload);
		} else {
			COUNT(s->bursts);
			s->gap_sum_us = add64(s->gap_sum_us, gap);
			s->gap_sumsq_us = add64(s->gap_sumsq_us, square(gap));
			w->burst_bytes[own] = payload;
		}
	}
	MOST(s->burst_max_bytes, w->burst_bytes[own]);
	s->payload_bytes = add64(s->payload_bytes, payload);
	COUNT(s->payload_packets);
	if (p->ip_bytes >= FULL_SEGMENT_BYTES)
		COUNT(s->full_segments);
	if (w->last_payload_side == other) {
		__u64 delay = now - w->side_last_payload_us[other];

		COUNT(r->turns);
		s->turn_delay_sum_us = add64(s->turn_delay_sum_us, delay);
		MOST(s->turn_delay_max_us, bounded(delay));
	}
	add_opening(flow, p, side, now);
	w->last_payload_side = side;
	w->side_last_payload_us[own] = now;
}

static __always_inline void add_tcp(struct flow *flow, struct packet *p, struct flow_side *s, int side)
{
	struct flow_work *w = &flow->work;
	__u8 flags = p->tcp_flags;

	if (flags & TCP_ACK) {
		COUNT(s->ack);
		if (!p->payload_bytes && !(flags & (TCP_SYN | TCP_FIN | TCP_RST)))
			COUNT(s->pure_ack);
	}
	if (flags & TCP_PSH)
		COUNT(s->psh);
	if (flags & TCP_SYN)
		COUNT(s->syn);
	if (flags & TCP_FIN) {
		COUNT(s->fin);
		w->fins |= 1 << (side & 1);
		if (w->fins == 3 && !w->closed)
			w->closed = FIN;
	}
	if (flags & TCP_RST) {
		COUNT(s->rst);
		if (!w->closed)
			w->closed = RST;
	} else {
		s->window_sum = add64(s->window_sum, p->window);
		LEAST(s->window_min, (__u32)p->window);
	}
}

static __always_inline void add_packet(struct flow *flow, struct packet *p, int side, __u64 now)
{
	struct flow_work *w = &flow->work;
	__u32 own = side & 1;
	struct flow_side *s = &flow->record.sides[own];
	__u64 length = p->ip_bytes;

	if (s->packets) {
		__u64 gap = now - w->side_last_us[own];

		s->iat_sum_us = add64(s->iat_sum_us, gap);
		s->iat_sumsq_us = add64(s->iat_sumsq_us, square(gap));
		LEAST(s->iat_min_us, bounded(gap));
		MOST(s->iat_max_us, bounded(gap));
	}
	w->side_last_us[own] = now;
	COUNT(s->packets);
	s->bytes = add64(s->bytes, length);
	s->len_sumsq = add64(s->len_sumsq, length * length);
	LEAST(s->len_min, (__u32)length);
	MOST(s->len_max, (__u32)length);
	if (p->payload_bytes)
		add_payload(flow, p, s, side, now);
	if (p->has_tcp)
		add_tcp(flow, p, s, side);
}

static __always_inline int is_checkpoint(struct flow *flow, __u64 now)
{
	struct flow_work *w = &flow->work;
	__u32 packets = flow->record.sides[0].packets + flow->record.sides[1].packets;

	if (packets < w->next_checkpoint &&
	    (packets <= LAST_FIXED_CHECKPOINT || now - w->last_checkpoint_us < CHECKPOINT_STEP_US))
		return 0;
	COUNT(flow->record.checkpoint);
	w->last_checkpoint_us = now;
	w->next_checkpoint = packets < LAST_FIXED_CHECKPOINT ? packets * 2 : packets + CHECKPOINT_STEP;
	return 1;
}

/* The way of a flow in its set: its own, else a free or finished one, else -1. `side` is set where it is its own. */
static __always_inline int find_way(struct flow_set *set, struct packet *p, __u64 now, int *side)
{
	int way = -1;

	*side = -1;
	for (int i = 0; i < FLOW_WAYS; i++) {
		*side = flow_side(&set->ways[i], p);
		if (*side >= 0)
			return i;
		if (!set->ways[i].work.used || (way < 0 && is_over(&set->ways[i], now)))
			way = way < 0 || set->ways[way & (FLOW_WAYS - 1)].work.used ? i : way;
	}
	return way;
}

static __always_inline void send_record(struct flow_record *record, __u16 ingress_port)
{
	struct record_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(&lost_events, 0, 0);
		return;
	}
	event->kind = EVENT_RECORD;
	event->ingress_port = ingress_port;
	event->pad = 0;
	__builtin_memcpy(&event->record, record, sizeof(*record));
	bpf_ringbuf_submit(event, 0);
}

/* Why the flow that has the place is over, or LIVE. */
static __always_inline enum end ended_by(struct flow *flow, struct packet *p, int side, int opening, __u64 now)
{
	struct flow_work *w = &flow->work;

	if (is_over(flow, now))
		return w->closed ? w->closed : IDLE;
	if (!opening)
		return LIVE;
	if (w->closed)
		return w->closed;
	if (side == 0 && ((w->isn_known && w->isn == p->seq) || (flow->record.syn_seen && !w->forward_seen)))
		return LIVE;
	return REUSE;
}

/* The same number, of which the verifier knows nothing afterwards: it then looks at what follows once, and not once for
 * each way of a set. */
__noinline int any_number(int number)
{
	asm volatile("" : "+r"(number));
	return number;
}

/* Count a packet into its flow's record and emit what is due. */
__noinline int record_packet(struct packet *p)
{
	if (!p)
		return 0;
	__u32 index = flow_hash(p) & flow_set_mask, zero = 0;
	struct flow_set *set = bpf_map_lookup_elem(&flow_sets, &index);
	struct flow_record *copy = bpf_map_lookup_elem(&scratch, &zero);
	__u64 now = p->now_ns / 1000;
	__u8 opened = p->tcp_flags & (TCP_SYN | TCP_ACK);
	int opening = opened == TCP_SYN, answering = opened == (TCP_SYN | TCP_ACK);
	int side, emit = 0;

	if (!set || !copy)
		return 0;
	struct attempt attempt = {&set->sequence};

	if (!take(&attempt)) {
		count_packet(&flow_collisions, 0, p);
		return 0;
	}
	int way = any_number(find_way(set, p, now, &side));

	if (way < 0) {
		give_back(&attempt);
		count_packet(&flow_collisions, 0, p);
		return 0;
	}
	struct flow *flow = &set->ways[way & (FLOW_WAYS - 1)];
	int renew = side < 0;

	if (!renew) {
		enum end end = ended_by(flow, p, side, opening, now);

		if (end == LIVE) {
			now = now > flow->work.last_us ? now : flow->work.last_us;
			if (now - flow->record.first_us >= ACTIVE_US)
				end = ACTIVE;
		}
		if (end != LIVE) {
			__builtin_memcpy(copy, &flow->record, sizeof(*copy));
			copy->end = end;
			emit = 1;
			if (end == ACTIVE)
				clear_flow(flow, now);
			else
				renew = 1;
		}
	} else if (flow->work.used) {
		__builtin_memcpy(copy, &flow->record, sizeof(*copy));
		copy->end = flow->work.closed ? flow->work.closed : IDLE;
		emit = 1;
	}
	if (renew) {
		start_flow(flow, p, now, answering);
		side = answering;
		if (opening || answering) {
			flow->record.syn_seen = 1;
			flow->work.isn = answering ? p->ack - 1 : p->seq;
			flow->work.isn_known = 1;
		}
	}
	flow->work.last_us = now;
	flow->record.duration_us = now - flow->record.first_us;
	if (side == 0) {
		if (!flow->record.sides[0].packets)
			flow->record.flow_label = p->flow_label;
		if (opening && !flow->work.forward_seen)
			flow->work.isn = p->seq; /* known only from the answer's acknowledgement until now */
		flow->work.forward_seen = 1;
	}
	add_packet(flow, p, side, now);
	if (!emit && is_checkpoint(flow, now)) {
		__builtin_memcpy(copy, &flow->record, sizeof(*copy));
		emit = 1;
	}
	give_back(&attempt);
	if (emit)
		send_record(copy, p->ingress_port);
	return 0;
}

/* One segment; its payload begins where that of the one before ended. */
static long record_segment(__u32 number, void *packet)
{
	struct packet *p = *(struct packet **)packet;
	__u16 headers = p->ip_bytes - p->payload_bytes, size = p->gso_bytes, rest = p->rest_bytes;
	__u8 flags = p->tcp_flags;

	if (rest <= size)
		size = rest;
	else
		p->tcp_flags &= ~(TCP_FIN | TCP_PSH); /* the last one's */
	p->payload_bytes = size;
	p->ip_bytes = headers + size;
	record_packet(p);
	p->tcp_flags = flags;
	p->seq += size;
	p->rest_bytes = rest - size;
	return p->rest_bytes == 0;
}

/* A packet that an offload made of several is in the record as those, all at one time. */
static __always_inline void record_segments(struct packet *p)
{
	__u16 total = p->ip_bytes, payload = p->payload_bytes;
	__u32 seq = p->seq;

	if (p->segments == 1) {
		record_packet(p);
		return;
	}
	p->rest_bytes = payload;
	bpf_loop(p->segments, record_segment, &p, 0);
	p->ip_bytes = total;
	p->payload_bytes = payload;
	p->seq = seq;
}

#endif
