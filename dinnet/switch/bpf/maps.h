/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The tables. The loader sets the sizes of those that memory limits. */
#ifndef DINNET_MAPS_H
#define DINNET_MAPS_H

#include "shared.h"

ARRAY(egress_port, PORTS, __u32);					     /* port -> interface index, 0: none */

TABLE(forward_v4, BPF_MAP_TYPE_LPM_TRIE, ROUTES, struct route_v4_key, struct forward, BPF_F_NO_PREALLOC);
TABLE(forward_v6, BPF_MAP_TYPE_LPM_TRIE, ROUTES, struct route_v6_key, struct forward, BPF_F_NO_PREALLOC);
TABLE(forward_l2, BPF_MAP_TYPE_HASH, STATIONS, struct station_key, struct forward, BPF_F_NO_PREALLOC);
TABLE(forward_default, BPF_MAP_TYPE_HASH, 1, __u32, struct forward, BPF_F_NO_PREALLOC); /* 0 */
TABLE(groups, BPF_MAP_TYPE_HASH, 1024, __u32, struct group, BPF_F_NO_PREALLOC);

ARRAY(dscp_to_mark, 64, struct mark);
ARRAY(mark_to_dscp, 64, struct mark);
ARRAY(queue_of_mark, 64, __u32); /* skb->priority: the HTB class of slice << 2 | tc */

/* Highest best_priority first. A list in force never changes: another one is put in its place, and the kernel lets the
 * writer go on only when no packet is at the old one any more. */
struct mask_list {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_MASKS);
	__type(key, __u32);
	__type(value, struct select_mask);
} no_masks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct mask_list);
} select_masks SEC(".maps") = {.values = {&no_masks}};

TABLE(slice_select, BPF_MAP_TYPE_HASH, SLICE_SELECTS, struct select_fields, struct select_entry, BPF_F_NO_PREALLOC);
COUNTERS(select_state, SLICE_SELECTS);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct mask_list);
} int_masks SEC(".maps") = {.values = {&no_masks}};

TABLE(int_source, BPF_MAP_TYPE_HASH, INT_SOURCES, struct select_fields, struct watch_entry, BPF_F_NO_PREALLOC);
COUNTERS(int_watch_state, INT_SOURCES);
ARRAY(int_node, PORTS, struct int_node); /* by egress port */
TABLE(int_collector, BPF_MAP_TYPE_HASH, 1, __u32, struct int_collector, BPF_F_NO_PREALLOC); /* 0 */

TABLE(microflow, BPF_MAP_TYPE_HASH, MICROFLOWS, struct microflow_key, struct microflow, BPF_F_NO_PREALLOC);
ARRAY(microflow_state, MICROFLOWS, struct microflow_state);
ARRAY(microflow_meter, MICROFLOWS, struct meter);

ARRAY(slice_meter, PORTS *SLICES, struct meter);
/* By slice << 2 | bucket; for those without an entry: EXCEED_DEFAULT. Hashes replace a value as a whole. */
TABLE(exceed, BPF_MAP_TYPE_HASH, EXCEED_DEFAULT + 1, __u32, struct exceed, BPF_F_NO_PREALLOC);

COUNTERS(drops, DROP_CELLS);
COUNTERS(parsed, PARSED_CELLS);
COUNTERS(marked, SLICES *TRAFFIC_CLASSES * 4);
COUNTERS(exceeded, SLICES * 16);
COUNTERS(flow_collisions, 1);
COUNTERS(lost_events, 2); /* 0: flow records, 1: packet-ins */

ARRAY(flow_sets, FLOW_SLOTS / FLOW_WAYS, struct flow_set);
TABLE(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct flow_record, 0);

/* Set before loading. */
const volatile __u64 build_id = 0; /* of the object file, so that a later process knows what it finds */
const volatile __u64 hash_seed = 0;
const volatile __u32 flow_set_mask = FLOW_SLOTS / FLOW_WAYS - 1;
const volatile __u16 int_port = INT_PORT;
const volatile __u16 int_session = INT_SESSION; /* for the server: the clone session that tells reports' port */
const volatile __u8 packet_clock = 0; /* take the time from skb->tstamp: for replaying recorded packets */

#endif
