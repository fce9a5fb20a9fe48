// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/* The pipeline of p4/dinnet.p4 for Linux: attached to the ingress of every port's interface. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "classify.h"
#include "contract.h"
#include "forward.h"
#include "int.h"
#include "maps.h"
#include "meter.h"
#include "parse.h"
#include "records.h"

#define LEAST_MTU 68 /* no link has less (RFC 791, 3.2) */

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline int drop(struct __sk_buff *skb, struct packet *p, enum drop reason)
{
	skb->cb[SHOWN_WAY] = (__u32)reason << 24;
	count_packet(&drops, reason, p);
	if (reason != DROP_MALFORMED && is_telemetry(p))
		return drop_with_int(skb, p, reason);
	return TC_ACT_SHOT;
}

static __always_inline int to_controller(struct __sk_buff *skb, struct packet *p)
{
	struct packet_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	__u32 length = skb->len;

	if (event) {
		event->kind = EVENT_PACKET_IN;
		event->ingress_port = p->ingress_port;
		event->length = length;
		event->vlan_type = skb->vlan_present ? bpf_ntohs(skb->vlan_proto) : 0;
		event->vlan_tci = skb->vlan_tci;
		if (length > EVENT_PACKET_BYTES)
			length = EVENT_PACKET_BYTES;
		/* From 1 to EVENT_PACKET_BYTES in a way that the verifier of Linux 6.1 sees, too; a frame is never empty. */
		length = ((length - 1) & (EVENT_PACKET_BYTES - 1)) + 1;
		if (bpf_skb_load_bytes(skb, 0, event->data, length) == 0) {
			bpf_ringbuf_submit(event, 0);
			return TC_ACT_SHOT;
		}
		bpf_ringbuf_discard(event, 0);
	}
	count_packet(&lost_events, 1, p);
	return TC_ACT_SHOT;
}

/* Segmentation and receive offloads (GSO, GRO) hand several packets over as one: count those that are on the wire, with
 * their headers. In a tunnel the inner headers count once; SCTP's segments are of any size, and count as one. */
static __always_inline void find_segments(struct __sk_buff *skb, struct packet *p)
{
	__u32 size = skb->gso_size, payload = p->payload_bytes;

	if (!size || payload <= size)
		return;
	p->segments = (payload + size - 1) / size;
	p->gso_bytes = size;
	p->frame_bytes += (p->segments - 1) * (p->frame_bytes - payload);
}

/* Whether a packet, less `taken` bytes, does not fit the link. The kernel would drop it behind our back. */
static __always_inline int is_too_long(struct __sk_buff *skb, struct packet *p, __u32 device, __u32 taken)
{
	__u32 mtu = 0, bytes = skb->len - p->l3 - taken;

	if (bytes <= LEAST_MTU)
		return 0;
	if (p->segments > 1)
		bytes -= p->payload_bytes - p->gso_bytes;
	/* Only for the number: the helper would take a tag in the frame for a part of the IP packet. */
	bpf_check_mtu(skb, device, &mtu, 0, 0);
	p->link_mtu = mtu;
	return mtu && bytes > mtu && (p->segments > 1 || !skb->gso_size);
}

static __always_inline enum drop to_port(struct __sk_buff *skb, struct packet *p, __u32 port, int *answer)
{
	__u32 *device = bpf_map_lookup_elem(&egress_port, &port);

	if (!device || !*device)
		return DROP_NO_ROUTE;
	if (is_too_long(skb, p, *device, bytes_for_sink(p, port)))
		return DROP_MTU;
	*answer = is_telemetry(p) ? send_with_int(skb, p, port, *device) : bpf_redirect(*device, 0);
	return KEPT;
}

/* A copy to every port of the group but the one that the packet came from. */
static __always_inline enum drop flood(struct __sk_buff *skb, struct packet *p, __u32 number)
{
	struct group *group = bpf_map_lookup_elem(&groups, &number);

	if (!group)
		return DROP_NO_ROUTE;
	if (p->int_bytes)
		take_out_of_flood(skb, p);
	for (__u32 i = 0; i < MAX_GROUP_PORTS; i++) {
		if (i >= group->count)
			break;
		__u32 port = group->ports[i];

		if (port == p->ingress_port)
			continue;
		__u32 *device = bpf_map_lookup_elem(&egress_port, &port);

		if (!device || !*device)
			continue;
		if (is_too_long(skb, p, *device, 0))
			count_packet(&drops, DROP_MTU, p);
		else
			bpf_clone_redirect(skb, *device, 0);
	}
	return KEPT; /* as copies */
}

/* What becomes of a packet above its token bucket. Changes where it goes, or drops it. */
static __always_inline enum drop apply_exceed(struct __sk_buff *skb, struct packet *p, enum bucket above,
					      struct forward *way)
{
	__u32 index = p->slice << 2 | above, other = EXCEED_DEFAULT;
	struct exceed *exceed_entry = bpf_map_lookup_elem(&exceed, &index);

	if (!exceed_entry)
		exceed_entry = bpf_map_lookup_elem(&exceed, &other);
	__u8 action = exceed_entry ? exceed_entry->action & 3 : DEGRADE;

	count_packet(&exceeded, index << 2 | action, p);
	if (!exceed_entry) {
		p->tc = 0;
		return KEPT;
	}
	switch (action) {
	case DROP:
		return above == ABOVE_SLICE ? DROP_SLICE : DROP_MICROFLOW;
	case REROUTE:
		way->action = FORWARD_PORT;
		way->port = exceed_entry->port;
		__u8 any_src = 0, any_dst = 0;
		for (int i = 0; i < 6; i++) {
			any_src |= exceed_entry->src[i];
			any_dst |= exceed_entry->dst[i];
		}
		if (any_dst)
			bpf_skb_store_bytes(skb, 0, exceed_entry->dst, 6, 0);
		if (any_src)
			bpf_skb_store_bytes(skb, 6, exceed_entry->src, 6, 0);
		return KEPT;
	default:
		p->tc = 0;
		return KEPT;
	}
}

static __always_inline enum drop police(struct __sk_buff *skb, struct packet *p, enum colour own, struct forward *way)
{
	enum colour slice_colour = GREEN;
	enum bucket above = ABOVE_NONE;

	if (own == RED) {
		above = ABOVE_MICROFLOW;
	} else {
		/* What a micro-flow's own bucket refuses must not use up the slice's tokens. */
		__u32 port = way->action == FORWARD_FLOOD ? NO_PORT : way->action == FORWARD_CONTROLLER ? CPU_PORT : way->port;
		__u32 index = port * SLICES + p->slice;
		struct meter *meter = bpf_map_lookup_elem(&slice_meter, &index);

		if (meter)
			slice_colour = run_meter(meter, p);
		if (slice_colour == RED)
			above = ABOVE_SLICE;
	}
	p->colour = own > slice_colour ? own : slice_colour;
	return above == ABOVE_NONE ? KEPT : apply_exceed(skb, p, above, way);
}

/* (slice, tc) to DSCP and to the egress queue; ECN is kept. */
static __always_inline void write_mark(struct __sk_buff *skb, struct packet *p)
{
	__u32 index = p->slice << 2 | p->tc;
	struct mark *plan = bpf_map_lookup_elem(&mark_to_dscp, &index);
	__u32 *queue = bpf_map_lookup_elem(&queue_of_mark, &index);
	__u8 tos = index << 2 | (p->tos & 3);

	skb->cb[SHOWN_MARK] = 1 | (__u32)p->slice << 8 | (__u32)p->tc << 16 | (__u32)p->colour << 24;
	count_packet(&marked, index << 2 | p->colour, p);
	if (queue)
		skb->priority = *queue;
	if (plan && plan->valid)
		tos = plan->dscp << 2 | (p->tos & 3);
	if (tos == p->tos)
		return;
	if (p->version == 4) {
		bpf_l3_csum_replace(skb, p->l3 + 10, bpf_htons(p->tos), bpf_htons(tos), 2);
		bpf_skb_store_bytes(skb, p->l3 + 1, &tos, 1, 0);
	} else {
		__u8 head[2] = {0x60 | tos >> 4, (__u8)(tos << 4 | (p->flow_label >> 16 & 15))};

		/* Unlike an IPv4 header, whose checksum makes up for it, this changes a checksum over the packet. */
		bpf_skb_store_bytes(skb, p->l3, head, 2, BPF_F_RECOMPUTE_CSUM);
	}
}

/* Everything that happens to a packet; why it is dropped, or what the program must answer. */
static __always_inline enum drop handle(struct __sk_buff *skb, struct packet *p, struct port_config *config, int *answer)
{
	struct forward way = {};
	enum verdict verdict = parse(skb, p);

	forget(p);
	if (verdict != PARSE_OK) {
		count_packet(&parsed, PARSED_MALFORMED, p);
		return DROP_MALFORMED;
	}
	find_segments(skb, p);
	count_packet(&parsed,
		     !p->version	 ? PARSED_NOT_IP
		     : p->later_fragment ? PARSED_FRAGMENT
		     : p->version == 4	 ? PARSED_IPV4
					 : PARSED_IPV6,
		     p);
	p->key_label = config->flow_labels ? p->flow_label : 0;
	if (p->version && !p->later_fragment)
		record_segments(p);

	struct forward *found = find_forward(skb, p);

	if (!found || found->action == FORWARD_MISS)
		return DROP_NO_ROUTE;
	way = *found;
	if (way.action == FORWARD_DROP)
		return DROP_FORWARD;
	if (way.action == FORWARD_ROUTE) {
		enum drop reason = take_hop(skb, p);

		if (reason)
			return reason;
		set_stations(skb, way.src, way.dst);
	}
	if (p->version) {
		classify(p, config->trusted);
		enum colour colour = p->later_fragment ? GREEN : find_microflow(skb, p);
		enum drop reason = police(skb, p, colour, &way);

		if (reason)
			return reason;
		write_mark(skb, p);
	}
	skb->cb[SHOWN_WAY] = way.action | (__u32)way.port << 8;
	switch (way.action) {
	case FORWARD_FLOOD:
		return flood(skb, p, way.port);
	case FORWARD_CONTROLLER:
		*answer = to_controller(skb, p);
		return KEPT;
	default:
		return to_port(skb, p, way.port, answer);
	}
}

SEC("tc")
int ingress(struct __sk_buff *skb)
{
	struct packet p = {};
	int answer = TC_ACT_SHOT;
	__u32 device = skb->ifindex;
	struct port_config *config = bpf_map_lookup_elem(&ingress_port, &device);

	if (!config)
		return TC_ACT_UNSPEC;
	skb->cb[SHOWN_WAY] = skb->cb[SHOWN_MARK] = skb->cb[SHOWN_MICROFLOW] = 0;
	p.ingress_port = config->port;
	p.segments = 1;
	p.frame_bytes = skb->len + (skb->vlan_present ? 4 : 0);
	if (p.ingress_port == CPU_PORT)
		p.frame_bytes += PACKET_OUT_BYTES;
	p.now_ns = packet_clock ? skb->tstamp : bpf_ktime_get_ns();
	enum drop reason = handle(skb, &p, config, &answer);

	return reason == KEPT ? answer : drop(skb, &p, reason);
}
