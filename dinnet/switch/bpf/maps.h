/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The tables. The loader sets the sizes of those that memory limits. */
#ifndef DINNET_MAPS_H
#define DINNET_MAPS_H

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "contract.h"

#define TABLE(name, kind, entries, key_type, value_type, flags)     \
	struct {                                                    \
		__uint(type, kind);                                 \
		__uint(max_entries, entries);                       \
		__uint(map_flags, flags);                           \
		__type(key, key_type);                              \
		__type(value, value_type);                          \
	} name SEC(".maps")
#define ARRAY(name, entries, value_type) TABLE(name, BPF_MAP_TYPE_ARRAY, entries, __u32, value_type, 0)
#define COUNTERS(name, entries) TABLE(name, BPF_MAP_TYPE_PERCPU_ARRAY, entries, __u32, struct cell, 0)

TABLE(ingress_port, BPF_MAP_TYPE_HASH, PORTS, __u32, struct port_config, 0); /* by interface index */
ARRAY(egress_port, PORTS, __u32);					     /* port -> interface index, 0: none */

TABLE(forward_v4, BPF_MAP_TYPE_LPM_TRIE, ROUTES, struct route_v4_key, struct forward, BPF_F_NO_PREALLOC);
TABLE(forward_v6, BPF_MAP_TYPE_LPM_TRIE, ROUTES, struct route_v6_key, struct forward, BPF_F_NO_PREALLOC);
TABLE(forward_l2, BPF_MAP_TYPE_HASH, STATIONS, struct station_key, struct forward, BPF_F_NO_PREALLOC);
ARRAY(forward_default, 1, struct forward);
TABLE(groups, BPF_MAP_TYPE_HASH, 1024, __u32, struct group, BPF_F_NO_PREALLOC);

ARRAY(dscp_to_mark, 64, struct mark);
ARRAY(mark_to_dscp, 64, struct mark);
ARRAY(queue_of_mark, 64, __u32); /* skb->priority: the HTB class of slice << 2 | tc */

ARRAY(select_masks, MAX_MASKS, struct select_mask); /* highest best_priority first */
TABLE(slice_select, BPF_MAP_TYPE_HASH, SLICE_SELECTS, struct select_fields, struct select_entry, BPF_F_NO_PREALLOC);
COUNTERS(select_state, SLICE_SELECTS);

TABLE(microflow, BPF_MAP_TYPE_HASH, MICROFLOWS, struct microflow_key, struct microflow, BPF_F_NO_PREALLOC);
ARRAY(microflow_state, MICROFLOWS, struct microflow_state);

ARRAY(slice_meter, PORTS *SLICES, struct meter);
ARRAY(exceed, 64, struct exceed); /* by slice << 2 | bucket */
ARRAY(exceed_default, 1, struct exceed);

COUNTERS(drops, DROP_CELLS);
COUNTERS(parsed, PARSED_CELLS);
COUNTERS(marked, SLICES *TRAFFIC_CLASSES * 4);
COUNTERS(exceeded, SLICES * 16);
COUNTERS(flow_collisions, 1);
COUNTERS(lost_events, 2); /* 0: flow records, 1: packet-ins */

ARRAY(flow_sets, FLOW_SLOTS / FLOW_WAYS, struct flow_set);
TABLE(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct flow_record, 0);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/* Set before loading. */
const volatile __u64 hash_seed = 0;
const volatile __u32 flow_set_mask = FLOW_SLOTS / FLOW_WAYS - 1;
const volatile __u8 packet_clock = 0; /* take the time from skb->tstamp: for replaying recorded packets */

static __always_inline void count(void *counters, __u32 index, __u32 bytes)
{
	struct cell *cell = bpf_map_lookup_elem(counters, &index);

	if (cell) {
		cell->packets++;
		cell->bytes += bytes;
	}
}

#endif
