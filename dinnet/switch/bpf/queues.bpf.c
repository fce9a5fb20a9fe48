// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/* The egress queues of the switch's ports, from the kernel's tracepoints: how long packets stay, and how many wait.
 *
 * Residence is from a qdisc's having taken a packet to its giving it out for the first time: a packet that the device
 * sends back is not counted again. What passes an empty queue by (TCQ_F_CAN_BYPASS), or has none, is never told of
 * here. Structures of the kernel are those of its own type information (CO-RE).
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "contract.h"
#include "shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TCQ_F_NOLOCK 0x100
#define ROOT 0xffffffffU
#define BURST 64	     /* packets that one dequeue gives at most, by the kernel's own limit */
#define MOST_WAITING 65536 /* packets in all queues */
#define MOST_WATCHED 4096
#define TRIES 4

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct netdev_queue {
	struct net_device *dev;
};

struct qdisc_skb_head {
	__u32 qlen;
};

struct Qdisc_ops {
	char id[16];
};

struct Qdisc {
	unsigned int flags;
	const struct Qdisc_ops *ops;
	__u32 parent;
	struct qdisc_skb_head q;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	char cb[48];
	unsigned int len;
	__u32 priority;
	unsigned int end;
	unsigned char *head;
};

struct skb_shared_info {
	unsigned short gso_segs;
};
#pragma clang attribute pop

enum skb_drop_reason {
	SKB_DROP_REASON_QDISC_DROP,
	SKB_DROP_REASON_QDISC_OVERLIMIT,
	SKB_DROP_REASON_QDISC_CONGESTED,
	SKB_DROP_REASON_CAKE_FLOOD,
	SKB_DROP_REASON_FQ_BAND_LIMIT,
	SKB_DROP_REASON_FQ_HORIZON_LIMIT,
	SKB_DROP_REASON_FQ_FLOW_LIMIT,
};

/* A packet in a queue. */
struct waiting {
	__u64 since_ns;
	struct queue_key key;
	__u32 bytes, packets; /* on the wire */
	__u32 found; /* packets */
	__u32 watched;
};

TABLE(in_queue, BPF_MAP_TYPE_HASH, MOST_WAITING, __u64, struct waiting, 0);	    /* by the skb's address */
TABLE(in_queue_watched, BPF_MAP_TYPE_HASH, MOST_WATCHED, __u64, struct queue_note, 0); /* likewise */
ARRAY(empty_queue, 1, struct queue);

/* Set before loading. */
const volatile __u32 netns_inode = 0; /* of the switch's network namespace: interface numbers are only its own */

static __always_inline int is_port(struct net_device *dev)
{
	__u32 ifindex = BPF_CORE_READ(dev, ifindex);

	if (BPF_CORE_READ(dev, nd_net.net, ns.inum) != netns_inode)
		return 0;
	struct port_config *config = bpf_map_lookup_elem(&ingress_port, &ifindex);

	return config && config->port != CPU_PORT;
}

static __always_inline __u32 class_of(struct sk_buff *skb)
{
	__u32 priority = BPF_CORE_READ(skb, priority);

	return priority >> 16 ? priority : 0;
}

/* As tc counts them: with the headers that segments will have. */
static __always_inline __u32 bytes_of(struct sk_buff *skb)
{
	__u32 bytes = 0;

	bpf_core_read(&bytes, sizeof(bytes), &skb->cb);
	return bytes;
}

static __always_inline __u32 packets_of(struct sk_buff *skb)
{
	struct skb_shared_info *info = (void *)(BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));
	__u32 segments = BPF_CORE_READ(info, gso_segs);

	return segments ? segments : 1;
}

/* Of those qdiscs that make new packets of one; the one is gone when its coming in is told. */
static __always_inline int cuts(struct Qdisc *q)
{
	__u32 id = 0;
	const struct Qdisc_ops *ops = BPF_CORE_READ(q, ops);

	bpf_core_read(&id, sizeof(id), &ops->id);
	return id == 0x00666274 /* tbf */ || id == 0x656b6163 /* cake */ || id == 0x6574656e /* netem */ ||
	       id == 0x72706174 /* taprio */;
}

static __always_inline struct queue *queue_of(struct queue_key *key)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, key);
	__u32 zero = 0;

	if (queue)
		return queue;
	queue = bpf_map_lookup_elem(&empty_queue, &zero);
	if (queue)
		bpf_map_update_elem(&queues, key, queue, BPF_NOEXIST);
	return bpf_map_lookup_elem(&queues, key);
}

#define ADD(place, value) __sync_fetch_and_add(&(place), (__u64)(value))

static __always_inline void raise(__u64 *most, __u64 value)
{
	for (int i = 0; i < TRIES; i++) {
		__u64 old = *(volatile __u64 *)most;

		if (old >= value || __sync_val_compare_and_swap(most, old, value) == old)
			break;
	}
}

static __always_inline __u32 step_of(__u64 ns)
{
	__u32 place = 0;

	if (ns < 4)
		return ns;
	for (__u32 bits = 32; bits; bits >>= 1)
		if (ns >> (place + bits))
			place += bits;
	__u32 step = place << 2 | (ns >> (place - 2) & 3);

	return step < RESIDENCE_STEPS ? step : RESIDENCE_STEPS - 1;
}

/* Tell the server what a report is to say, with its number. */
static __always_inline void tell_report(struct queue_note *note, __u64 now_ns, __u32 found, int dropped)
{
	__u32 zero = 0;
	__u32 *sequence = bpf_map_lookup_elem(&int_sequence, &zero);
	struct queue_event *event = sequence ? bpf_ringbuf_reserve(&events, sizeof(*event), 0) : 0;

	if (!event) {
		count(&int_events, INT_REPORT_LOST, note->frame_bytes);
		return;
	}
	event->kind = EVENT_QUEUE;
	event->dropped = dropped;
	event->pad = event->pad2 = 0;
	event->egress_ns = now_ns;
	event->occupancy = found;
	bpf_probe_read_kernel(&event->note, sizeof(event->note), note);
	event->sequence = __sync_fetch_and_add(sequence, 1);
	bpf_ringbuf_submit(event, 0);
	count(&int_events, INT_REPORTED, note->frame_bytes);
}

/* The note of the pipeline that is sending this packet at the moment, on this CPU. */
static __always_inline struct queue_note *note_of(__u32 ifindex, struct sk_buff *skb)
{
	__u32 zero = 0;
	struct queue_note *note = bpf_map_lookup_elem(&queue_note, &zero);

	return note && note->ifindex == ifindex && !note->taken && note->length == BPF_CORE_READ(skb, len) ? note : 0;
}

static __always_inline void leave(struct queue *queue, struct waiting *packet)
{
	ADD(queue->backlog_packets, -1);
	ADD(queue->backlog_bytes, -(__u64)packet->bytes);
}

static __always_inline void count_drop(struct queue *queue, struct queue_key *key, __u32 bytes, __u32 reason)
{
	struct queue_drop_key drop = {key->ifindex, key->classid, reason};
	struct cell *cell = bpf_map_lookup_elem(&queue_drops, &drop), none = {};

	ADD(queue->drops, 1);
	ADD(queue->drop_bytes, bytes);
	if (!cell) {
		bpf_map_update_elem(&queue_drops, &drop, &none, BPF_NOEXIST);
		cell = bpf_map_lookup_elem(&queue_drops, &drop);
	}
	if (cell) {
		ADD(cell->packets, 1);
		ADD(cell->bytes, bytes);
	}
}

SEC("tp_btf/qdisc_enqueue")
int BPF_PROG(enqueued, struct Qdisc *q, const struct netdev_queue *txq, struct sk_buff *skb)
{
	struct net_device *dev = BPF_CORE_READ(txq, dev);
	__u64 address = (__u64)skb;

	if (!is_port(dev))
		return 0;
	struct waiting packet = {.since_ns = bpf_ktime_get_ns()};

	packet.bytes = bytes_of(skb);
	packet.packets = packets_of(skb);
	if (BPF_CORE_READ(q, flags) & TCQ_F_NOLOCK) {
		count(&queue_misses, QUEUE_LOCKLESS, packet.bytes);
		return 0;
	}
	if (packet.packets > 1 && cuts(q)) {
		count(&queue_misses, QUEUE_CUT, packet.bytes);
		return 0;
	}
	packet.key = (struct queue_key){BPF_CORE_READ(dev, ifindex), class_of(skb)};
	struct waiting *old = bpf_map_lookup_elem(&in_queue, &address);

	if (old) {
		struct queue *left = bpf_map_lookup_elem(&queues, &old->key);

		if (left)
			leave(left, old);
		count(&queue_misses, QUEUE_VANISHED, old->bytes);
		bpf_map_delete_elem(&in_queue_watched, &address);
	}
	struct queue *queue = queue_of(&packet.key);

	if (!queue) {
		count(&queue_misses, QUEUE_NO_ROOM, packet.bytes);
		return 0;
	}
	__u64 found_packets = queue->backlog_packets, found_bytes = queue->backlog_bytes;
	struct queue_note *note = note_of(packet.key.ifindex, skb);

	packet.found = found_packets < ROOT ? found_packets : ROOT;
	packet.watched = note && !bpf_map_update_elem(&in_queue_watched, &address, note, BPF_ANY);
	if (bpf_map_update_elem(&in_queue, &address, &packet, BPF_ANY)) {
		count(&queue_misses, QUEUE_NO_ROOM, packet.bytes);
		if (packet.watched)
			bpf_map_delete_elem(&in_queue_watched, &address);
		return 0;
	}
	/* Without a note it is not watched, but the verifier of Linux 6.1 has lost that by now. */
	asm volatile("" : "+r"(note));
	if (note && packet.watched)
		note->taken = 1;
	ADD(queue->enqueued_packets, packet.packets);
	ADD(queue->enqueued_bytes, packet.bytes);
	ADD(queue->found_packets, found_packets);
	ADD(queue->found_bytes, found_bytes);
	ADD(queue->backlog_packets, 1);
	ADD(queue->backlog_bytes, packet.bytes);
	raise(&queue->backlog_max_packets, found_packets + 1);
	raise(&queue->backlog_max_bytes, found_bytes + packet.bytes);
	return 0;
}

/* Global, so that it is verified once and not for each packet of a burst. */
__noinline int one_left(__u64 address, __u64 now_ns)
{
	struct waiting *packet = bpf_map_lookup_elem(&in_queue, &address);

	if (!packet)
		return 0;
	struct queue *queue = bpf_map_lookup_elem(&queues, &packet->key);

	if (queue) {
		__u64 ns = now_ns - packet->since_ns;
		__u32 step = step_of(ns);

		leave(queue, packet);
		ADD(queue->packets, packet->packets);
		ADD(queue->bytes, packet->bytes);
		ADD(queue->timed, 1);
		ADD(queue->residence_sum_ns, ns);
		raise(&queue->residence_max_ns, ns);
		if (step < RESIDENCE_STEPS)
			ADD(queue->residence[step], 1);
	}
	if (packet->watched) {
		struct queue_note *note = bpf_map_lookup_elem(&in_queue_watched, &address);

		if (note)
			tell_report(note, now_ns, packet->found, 0);
		bpf_map_delete_elem(&in_queue_watched, &address);
	}
	bpf_map_delete_elem(&in_queue, &address);
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(dequeued, struct Qdisc *q, const struct netdev_queue *txq, int packets, struct sk_buff *skb)
{
	__u64 address = 0;

	if (!skb || !is_port(BPF_CORE_READ(txq, dev)))
		return 0;
	bpf_probe_read_kernel(&address, sizeof(address), &skb); /* to the verifier, a number */
	__u64 now_ns = bpf_ktime_get_ns();

	for (int i = 0; i < BURST && address; i++) {
		one_left(address, now_ns);
		address = (__u64)BPF_CORE_READ((struct sk_buff *)address, next);
	}
	return 0;
}

#define IS(value)                                                              \
	(bpf_core_enum_value_exists(enum skb_drop_reason, value) &&            \
	 reason == bpf_core_enum_value(enum skb_drop_reason, value))

static __always_inline int is_by_qdisc(__u32 reason)
{
	return IS(SKB_DROP_REASON_QDISC_DROP) || IS(SKB_DROP_REASON_QDISC_OVERLIMIT) ||
	       IS(SKB_DROP_REASON_QDISC_CONGESTED) || IS(SKB_DROP_REASON_CAKE_FLOOD) ||
	       IS(SKB_DROP_REASON_FQ_BAND_LIMIT) || IS(SKB_DROP_REASON_FQ_HORIZON_LIMIT) ||
	       IS(SKB_DROP_REASON_FQ_FLOW_LIMIT);
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(freed, struct sk_buff *skb, void *location, __u32 reason)
{
	struct net_device *dev = BPF_CORE_READ(skb, dev);
	__u64 address = (__u64)skb;

	if (!dev || !is_port(dev))
		return 0;
	__u32 ifindex = BPF_CORE_READ(dev, ifindex);
	struct waiting *packet = bpf_map_lookup_elem(&in_queue, &address);

	if (packet && packet->key.ifindex == ifindex) { /* it was in the queue */
		struct queue *queue = bpf_map_lookup_elem(&queues, &packet->key);

		if (queue) {
			leave(queue, packet);
			count_drop(queue, &packet->key, packet->bytes, reason);
		}
		if (packet->watched) {
			struct queue_note *note = bpf_map_lookup_elem(&in_queue_watched, &address);

			if (note)
				tell_report(note, bpf_ktime_get_ns(), packet->found, 1);
			bpf_map_delete_elem(&in_queue_watched, &address);
		}
		bpf_map_delete_elem(&in_queue, &address);
	} else if (is_by_qdisc(reason)) { /* it was refused */
		struct queue_key key = {ifindex, class_of(skb)};
		struct queue *queue = queue_of(&key);
		struct queue_note *note = note_of(ifindex, skb);

		if (queue)
			count_drop(queue, &key, bytes_of(skb), reason);
		if (note) {
			note->taken = 1;
			tell_report(note, bpf_ktime_get_ns(), queue ? queue->backlog_packets : 0, 1);
		}
	}
	return 0;
}
