/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* How tables are declared, and those that the pipeline and the programs at the queues (queues.bpf.c) have in common. */
#ifndef DINNET_SHARED_H
#define DINNET_SHARED_H

#include <linux/bpf.h>

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

ARRAY(int_sequence, 1, __u32); /* of the next report */
COUNTERS(int_events, INT_CELLS);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/* What queues.bpf.c counts lives as long as the pipeline, which is only made to hold it. */
TABLE(queues, BPF_MAP_TYPE_HASH, 4096, struct queue_key, struct queue, BPF_F_NO_PREALLOC);
TABLE(queue_drops, BPF_MAP_TYPE_HASH, 4096, struct queue_drop_key, struct cell, BPF_F_NO_PREALLOC);
COUNTERS(queue_misses, QUEUE_CELLS);
ARRAY(queue_link, 1, __u32); /* number of the link that measures, 0: none ever did */
TABLE(queue_note, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct queue_note, 0);

static __always_inline void count(void *counters, __u32 index, __u32 bytes)
{
	struct cell *cell = bpf_map_lookup_elem(counters, &index);

	if (cell) {
		cell->packets++;
		cell->bytes += bytes;
	}
}

#endif
