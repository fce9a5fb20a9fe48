/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Which slice and queue a packet belongs to, as p4/include/classify.p4 and meters.p4 do it. */
#ifndef DINNET_CLASSIFY_H
#define DINNET_CLASSIFY_H

#include "meter.h"
#include "parse.h"

/* Ternary: one exact lookup for each combination of masks in use, in the order of the best entry behind it. */
static __always_inline struct select_entry *find_best(struct packet *p, void *lists, void *table)
{
	struct select_entry *best = 0;
	__u32 best_priority = 0, zero = 0;
	void *masks = bpf_map_lookup_elem(lists, &zero);

	if (!masks)
		return 0;
	for (__u32 i = 0; i < MAX_MASKS; i++) {
		__u32 index = i;
		struct select_mask *mask = bpf_map_lookup_elem(masks, &index);

		if (!mask || mask->best_priority <= best_priority)
			break; /* 0 behind the last one */
		struct select_fields key = {
			.src_hi = p->src_hi & mask->fields.src_hi,
			.src_lo = p->src_lo & mask->fields.src_lo,
			.dst_hi = p->dst_hi & mask->fields.dst_hi,
			.dst_lo = p->dst_lo & mask->fields.dst_lo,
			.ingress_port = p->ingress_port & mask->fields.ingress_port,
			.sport = p->sport & mask->fields.sport,
			.dport = p->dport & mask->fields.dport,
			.vlan = p->vlan & mask->fields.vlan,
			.proto = p->proto & mask->fields.proto,
			.mask_id = mask->fields.mask_id,
		};
		struct select_entry *entry = bpf_map_lookup_elem(table, &key);

		if (entry && entry->priority > best_priority) {
			best = entry;
			best_priority = entry->priority;
		}
	}
	return best;
}

/* A global function, which the verifier judges once and by itself: in line, the loop is more than that of Linux 6.1
 * goes through. */
__noinline int select_slice(struct packet *p)
{
	struct select_entry *best = p ? find_best(p, &select_masks, &slice_select) : 0;

	if (best) {
		p->slice = best->slice & (SLICES - 1);
		p->tc = best->tc & (TRAFFIC_CLASSES - 1);
		count_packet(&select_state, best->state, p);
	}
	return 0;
}

/* Returns the micro-flow's colour. */
static __always_inline enum colour find_microflow(struct __sk_buff *skb, struct packet *p)
{
	struct microflow_key key = {
		.src_hi = p->src_hi,
		.src_lo = p->src_lo,
		.dst_hi = p->dst_hi,
		.dst_lo = p->dst_lo,
		.flow_label = p->key_label,
		.sport = p->sport,
		.dport = p->dport,
		.vlan = p->vlan,
		.proto = p->proto,
	};
	struct microflow *found = bpf_map_lookup_elem(&microflow, &key);

	if (!found)
		return GREEN;
	__u32 cell = found->state;
	struct microflow_state *state = bpf_map_lookup_elem(&microflow_state, &cell);

	p->slice = found->slice & (SLICES - 1);
	p->tc = found->tc & (TRAFFIC_CLASSES - 1);
	skb->cb[SHOWN_MICROFLOW] = found->id;
	if (!state)
		return GREEN;
	__sync_fetch_and_add(&state->counter.packets, p->segments);
	__sync_fetch_and_add(&state->counter.bytes, p->frame_bytes);
	state->last_ns = p->now_ns;
	if (!found->metered)
		return GREEN;
	struct meter *meter = bpf_map_lookup_elem(&microflow_meter, &cell);

	return meter ? run_meter(meter, p) : GREEN;
}

static __always_inline void classify(struct packet *p, int trusted)
{
	__u32 dscp = p->tos >> 2;

	if (trusted) {
		struct mark *mark = bpf_map_lookup_elem(&dscp_to_mark, &dscp);

		p->slice = dscp >> 2;
		p->tc = dscp & 3;
		if (mark && mark->valid) {
			p->slice = mark->slice & (SLICES - 1);
			p->tc = mark->tc & (TRAFFIC_CLASSES - 1);
		}
	}
	select_slice(p);
}

#endif
