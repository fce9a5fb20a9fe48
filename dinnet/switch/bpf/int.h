/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* In-band network telemetry (INT 2.1, Telemetry Report 2.0), as p4/include/int.p4 does it.
 *
 * What is here runs only for packets that carry INT or that the watch list may name, at the end of the pipeline. A
 * packet that is reported on goes its way as a copy; the packet itself becomes the report, so that nothing of it must
 * be put back.
 */
#ifndef DINNET_INT_H
#define DINNET_INT_H

#include "classify.h"
#include "parse.h"
#include "queuenote.h"

/* The instruction bitmap. */
#define BIT_NODE_ID 0x8000
#define BIT_PORTS 0x4000
#define BIT_HOP_LATENCY 0x2000
#define BIT_QUEUE 0x1000
#define BIT_INGRESS_TIME 0x0800
#define BIT_EGRESS_TIME 0x0400
#define BIT_INTERFACES 0x0200
#define BIT_TX_UTILIZATION 0x0100
#define BIT_BUFFER 0x0080
#define BIT_COMPLEMENT 0x0001
#define BITS_KNOWN 0xff81
#define BITS_LONG 0x0e00 /* of 8 bytes */
/* What this switch can tell at ingress, where the program runs. */
#define BITS_TOLD (BIT_PORTS | BIT_QUEUE | BIT_INGRESS_TIME | BIT_INTERFACES)
#define BIT_DROP_REASON 0x0001 /* of RepMdBits */

#define FLAG_DISCARD 0x08
#define FLAG_HOPS 0x04
#define FLAG_MTU 0x02
#define REPORT_DROPPED 0x80
#define REPORT_TRACKED 0x20

#define ETHERNET_BYTES 14
#define INT_BYTES (12 + 255 * 4) /* UDP header, shim, and as much as the shim can announce */
#define ERROR_NO_MEMORY (-12)
#define UNKNOWN 0xffffffffU
#define UNKNOWN_PORT 0xffff

struct int_headers {
	struct udp_header udp;
	__u8 kind, words, reserved, proto;
	__u8 version_flags, reserved2, hop_words, remaining;
	__be16 instructions, domain, domain_instructions, domain_flags;
};

struct report_headers {
	__u16 pad; /* so that numbers are where the processor wants them */
	__u8 dst_mac[6], src_mac[6];
	__be16 type;
	struct ipv4_header ip;
	struct udp_header udp;
	__be32 version_sequence, node_id;
	__u8 types, words, metadata_words, flags;
	__be16 present, domain, domain_bits, domain_status;
	__be32 metadata[16];
};

/* What a report is to be about. */
struct report {
	__u32 node_id;
	__u16 bits;  /* RepMdBits */
	__u16 port;  /* egress */
	__u16 taken; /* INT bytes that were taken out of the packet and are to be in the report */
	__u8 flags;
	__u8 reason; /* enum drop */
};

/* What would need too much of the stack. */
struct int_scratch {
	struct report request;
	__u8 moved[128];
	__u8 taken[1280];
	struct int_headers headers;
	__be32 metadata[16]; /* right behind */
	struct int_headers old;
	struct report_headers report;
};

TABLE(int_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct int_scratch, 0);

static __always_inline int is_watching(struct packet *p)
{
	__u32 zero = 0;
	void *masks = bpf_map_lookup_elem(&int_masks, &zero);
	struct select_mask *first = masks ? bpf_map_lookup_elem(masks, &zero) : 0;

	return first && first->best_priority && p->version;
}

/* Whether the watch list wants something of the packet: into p->watch. Global for the reason that select_slice is. */
__noinline int find_watch(struct packet *p)
{
	struct watch_entry *found = p ? (struct watch_entry *)find_best(p, &int_masks, &int_source) : 0;

	if (!found)
		return WATCH_NONE;
	count_packet(&int_watch_state, found->state, p);
	p->watch = found->action;
	p->watch_hops = found->hops;
	p->watch_instructions = found->instructions;
	return found->action;
}

/* Whether INT has anything to do with a packet. */
static __always_inline int is_telemetry(struct packet *p)
{
	return p->ingress_port != CPU_PORT && (p->int_bytes || (is_watching(p) && find_watch(p) != WATCH_NONE));
}

/* Of a packet that leaves by a port: what its sink will take out. */
static __always_inline __u32 bytes_for_sink(struct packet *p, __u32 port)
{
	struct int_node *node = p->int_bytes ? bpf_map_lookup_elem(&int_node, &port) : 0;

	return node && node->valid && node->is_sink ? p->int_bytes : 0;
}

/* As it was configured, or less where the link takes less. */
static __always_inline __u32 mtu_of(struct int_node *node, struct packet *p)
{
	return p->link_mtu && p->link_mtu < node->mtu ? p->link_mtu : node->mtu;
}

static __always_inline __u32 words_of(__u16 bits)
{
	return __builtin_popcount(bits) + __builtin_popcount(bits & BITS_LONG);
}

/* Metadata for the bits; returns how many words. */
static __always_inline __u32 tell(__be32 *words, __u16 bits, struct packet *p, __u32 node_id, __u16 port)
{
	__u32 n = 0;

#define TELL(bit, value)                         \
	do {                                     \
		words[n & 15] = bpf_htonl(value); \
		n += (bits & (bit)) != 0;        \
	} while (0)
	TELL(BIT_NODE_ID, node_id);
	TELL(BIT_PORTS, (__u32)p->ingress_port << 16 | port);
	TELL(BIT_HOP_LATENCY, UNKNOWN);
	TELL(BIT_QUEUE, (__u32)(p->slice << 2 | p->tc) << 24 | 0xffffff);
	TELL(BIT_INGRESS_TIME, p->now_ns >> 32);
	TELL(BIT_INGRESS_TIME, p->now_ns);
	TELL(BIT_EGRESS_TIME, UNKNOWN);
	TELL(BIT_EGRESS_TIME, UNKNOWN);
	TELL(BIT_INTERFACES, p->ingress_port);
	TELL(BIT_INTERFACES, port == UNKNOWN_PORT ? UNKNOWN : port);
	TELL(BIT_TX_UTILIZATION, UNKNOWN);
	TELL(BIT_BUFFER, UNKNOWN);
	TELL(BIT_COMPLEMENT, UNKNOWN);
#undef TELL
	return n & 15;
}

/* Copies of 1 to `most` bytes; another size fails. The verifier of Linux 6.1 does not see from a comparison with 0 that a
 * size is not 0. */
static __always_inline int load_some(struct __sk_buff *skb, __u32 offset, void *into, __u32 size, __u32 most)
{
	__u32 rest = size - 1;

	asm volatile("" : "+r"(rest));
	return rest >= most ? -1 : bpf_skb_load_bytes(skb, offset, into, rest + 1);
}

static __always_inline int store_some(struct __sk_buff *skb, __u32 offset, void *from, __u32 size, __u32 most)
{
	__u32 rest = size - 1;

	asm volatile("" : "+r"(rest));
	return rest >= most ? -1 : bpf_skb_store_bytes(skb, offset, from, rest + 1, 0);
}

/* Tags in the frame keep the kernel from making room behind them: have it forget them, and write them anew. */
static __always_inline int settle_tags(struct __sk_buff *skb, struct packet *p, struct int_scratch *s)
{
	__u32 taken_out = skb->vlan_present, type = skb->vlan_proto, tci = skb->vlan_tci, size = p->l3;

	if (size <= ETHERNET_BYTES || load_some(skb, 0, s->moved, size, ETHERNET_BYTES + 8))
		return -1;
	bpf_skb_vlan_pop(skb);
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	if (bpf_skb_change_head(skb, size - ETHERNET_BYTES, 0) || store_some(skb, 0, s->moved, size, ETHERNET_BYTES + 8))
		return -1;
	return taken_out ? bpf_skb_vlan_push(skb, type, tci) : 0;
}

/* Make room, or with a negative number close it, `kept` bytes behind the beginning of the transport header. The kernel
 * does that behind an IP header without options: move what else is in front of the place. */
static __always_inline int resize(struct __sk_buff *skb, struct packet *p, struct int_scratch *s, __s32 bytes, __u32 kept)
{
	__u32 place = p->l3 + (p->version == 4 ? 20 : 40);
	__u32 moved = p->l4 + kept - place;

	if ((skb->protocol == bpf_htons(ETH_VLAN) || skb->protocol == bpf_htons(ETH_QINQ)) && settle_tags(skb, p, s))
		return -1;
	if (moved && load_some(skb, place, s->moved, moved, sizeof(s->moved)))
		return -1;
	if (bytes < 0 && moved && store_some(skb, place - bytes, s->moved, moved, sizeof(s->moved)))
		return -1;
	if (bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_NET, 0))
		return -1;
	if (bytes > 0 && moved && store_some(skb, place, s->moved, moved, sizeof(s->moved)))
		return -1;
	return 0;
}

/* Total length and protocol in the IP header. */
static __always_inline void set_ip(struct __sk_buff *skb, struct packet *p, __u16 old_total, __u16 total, __u8 old_proto,
				   __u8 proto)
{
	if (p->version == 4) {
		__be16 length = bpf_htons(total);

		bpf_l3_csum_replace(skb, p->l3 + 10, bpf_htons(old_total), length, 2);
		bpf_l3_csum_replace(skb, p->l3 + 10, bpf_htons(old_proto), bpf_htons(proto), 2);
		bpf_skb_store_bytes(skb, p->l3 + 2, &length, 2, 0);
		bpf_skb_store_bytes(skb, p->l3 + 9, &proto, 1, 0);
	} else {
		__be16 length = bpf_htons(total - 40);

		bpf_skb_store_bytes(skb, p->l3 + 4, &length, 2, 0);
		bpf_skb_store_bytes(skb, p->l3 + 6, &proto, 1, 0);
	}
}

/* Write DSCP and hops as they were when the packet came in. */
static __always_inline void undo_marks(struct __sk_buff *skb, struct packet *p)
{
	__u8 tos, ttl;

	if (p->version == 4) {
		if (bpf_skb_load_bytes(skb, p->l3 + 1, &tos, 1) || bpf_skb_load_bytes(skb, p->l3 + 8, &ttl, 1))
			return;
		bpf_l3_csum_replace(skb, p->l3 + 10, bpf_htons(tos), bpf_htons(p->tos), 2);
		bpf_l3_csum_replace(skb, p->l3 + 10, bpf_htons(ttl << 8), bpf_htons(p->ttl << 8), 2);
		bpf_skb_store_bytes(skb, p->l3 + 1, &p->tos, 1, 0);
		bpf_skb_store_bytes(skb, p->l3 + 8, &p->ttl, 1, 0);
	} else {
		__u8 head[2] = {0x60 | p->tos >> 4, (__u8)(p->tos << 4 | (p->flow_label >> 16 & 15))};

		bpf_skb_store_bytes(skb, p->l3, head, 2, 0);
		bpf_skb_store_bytes(skb, p->l3 + 7, &p->ttl, 1, 0);
	}
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The same for all packets of a flow, and spread over flows: for networks that share load by ports. */
static __always_inline __u16 source_port(struct packet *p)
{
	__u64 words = p->src_hi ^ p->src_lo ^ p->dst_hi ^ p->dst_lo;
	__u32 word = (__u32)(words >> 32) ^ (__u32)words ^ ((__u32)p->sport << 16 | p->dport) ^ p->proto;

	return 0xc000 | word * 0x9e3779b1U >> 18;
}

/* Make the packet, which is not needed any more, a report about itself; returns what the program must. */
static __always_inline int send_report(struct __sk_buff *skb, struct packet *p, struct int_scratch *s, struct report *r)
{
	__u32 zero = 0, before = skb->len, transport, available;
	struct int_collector *collector = bpf_map_lookup_elem(&int_collector, &zero);
	__u32 *sequence = bpf_map_lookup_elem(&int_sequence, &zero), *queue = bpf_map_lookup_elem(&queue_of_mark, &zero);

	if (!collector || !sequence)
		goto lost;
	__u32 port = collector->port;
	__u32 *device = bpf_map_lookup_elem(&egress_port, &port);

	if (!device || !*device)
		goto lost;
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb); /* the inner tag, which has been taken out of the frame in its place */
	p->l3 -= before - skb->len;
	p->l4 -= before - skb->len;
	undo_marks(skb, p);

	__u32 kept = p->l4 + (r->taken ? 0 : p->int_bytes);

	transport = p->later_fragment ? 0 : p->proto == 6 ? 20 : p->proto == 17 ? 8 : 0;
	available = skb->len > kept ? skb->len - kept : 0;
	kept += transport < available ? transport : available & ~3;
	if (!p->int_bytes && kept > p->l3 + INT_REPORT_BYTES)
		kept = p->l3 + INT_REPORT_BYTES;
	if (bpf_skb_pull_data(skb, kept) || (skb->len > kept && bpf_skb_change_tail(skb, kept, 0)))
		goto lost;
	if (r->taken) {
		__u32 taken = r->taken;

		if (resize(skb, p, s, taken, 0) || store_some(skb, p->l4, s->taken, taken, INT_BYTES))
			goto lost;
		set_ip(skb, p, p->ip_bytes, p->ip_bytes + taken, p->proto, 17);
	}

	struct report_headers *h = &s->report;
	__u32 words = tell(h->metadata, r->bits & ~BIT_COMPLEMENT, p, r->node_id, r->port);

	if (r->bits & BIT_DROP_REASON) {
		h->metadata[words & 15] = bpf_htonl((__u32)(p->slice << 2 | p->tc) << 24 | (__u32)r->reason << 16);
		words++;
	}
	__u32 head = sizeof(*h) - sizeof(h->pad) - sizeof(h->metadata) + (words & 15) * 4;

	if (bpf_skb_change_head(skb, head - p->l3, 0))
		goto lost;
	__u32 length = skb->len - ETHERNET_BYTES, inner = (length - 40) >> 2;

	__builtin_memcpy(h->dst_mac, collector->dst_mac, 6);
	__builtin_memcpy(h->src_mac, collector->src_mac, 6);
	h->type = bpf_htons(ETH_IPV4);
	h->ip = (struct ipv4_header){.version_ihl = 0x45, .ttl = 64, .protocol = 17, .fragment = bpf_htons(0x4000)};
	h->ip.total_length = bpf_htons(length);
	h->ip.src = collector->src;
	h->ip.dst = collector->dst;
	h->ip.checksum = ~folded((__u32)bpf_csum_diff(0, 0, (__be32 *)&h->ip, sizeof(h->ip), 0));
	h->udp.source = bpf_htons(collector->sport);
	h->udp.destination = bpf_htons(collector->dport);
	h->udp.length = bpf_htons(length - 20);
	h->udp.checksum = 0;
	h->version_sequence = bpf_htonl(2U << 28 | (__sync_fetch_and_add(sequence, 1) & 0x3fffff));
	h->node_id = bpf_htonl(r->node_id);
	h->types = 1 << 4 | (p->version == 4 ? 4 : 5);
	h->words = inner < 255 ? inner : 255;
	h->metadata_words = words;
	h->flags = r->flags;
	h->present = bpf_htons(r->bits);
	h->domain = h->domain_bits = h->domain_status = 0;
	if (bpf_skb_store_bytes(skb, 0, h->dst_mac, head, 0))
		goto lost;
	if (queue)
		skb->priority = *queue;
	count(&int_events, INT_REPORTED, p->frame_bytes);
	return bpf_redirect(*device, 0);
lost:
	count(&int_events, INT_REPORT_LOST, p->frame_bytes);
	return TC_ACT_SHOT;
}

/* Take INT out of the packet, into s->taken. */
static __always_inline int take_out(struct __sk_buff *skb, struct packet *p, struct int_scratch *s)
{
	__u32 bytes = p->int_bytes;

	if (bytes < INT_HEADERS || skb->gso_size || load_some(skb, p->l4, s->taken, bytes, INT_BYTES) ||
	    resize(skb, p, s, -(__s32)bytes, 0))
		return -1;
	set_ip(skb, p, p->ip_bytes + bytes, p->ip_bytes, 17, p->proto);
	count(&int_events, INT_ENDED, p->frame_bytes);
	return 0;
}

static __always_inline int is_followed(struct int_headers *h)
{
	__u16 bits = bpf_ntohs(h->instructions);

	return h->version_flags >> 4 == 2 && !(bits & ~BITS_KNOWN) && !h->domain && !h->domain_instructions &&
	       (h->hop_words & 31) == words_of(bits);
}

/* Write changed headers and `added` words of metadata behind them, and put the UDP checksum right where there is one. */
static __always_inline void write_int(struct __sk_buff *skb, struct packet *p, struct int_scratch *s, __u32 added)
{
	__u32 bytes = INT_HEADERS + (added & 15) * 4;
	struct int_headers *h = &s->headers;

	if (h->udp.checksum) {
		__u16 sum = ~h->udp.checksum;

		h->udp.checksum = s->old.udp.checksum = 0;
		__u64 diff = (__u32)bpf_csum_diff((__be32 *)&s->old, INT_HEADERS, (__be32 *)h, bytes, sum);

		/* The length stands in the pseudo-header, too. */
		sum = ~folded(diff + h->udp.length + (__u16)~s->old.udp.length);
		h->udp.checksum = sum ? sum : 0xffff;
	}
	bpf_skb_store_bytes(skb, p->l4, h, bytes, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline void pass(struct __sk_buff *skb, struct packet *p, struct int_scratch *s, struct int_node *node,
				 __u16 port)
{
	struct int_headers *h = &s->headers;
	__u32 total = p->ip_bytes + p->int_bytes, words, bytes;

	if (skb->gso_size || bpf_skb_load_bytes(skb, p->l4, h, INT_HEADERS)) {
		count_packet(&int_events, INT_UNFIT, p);
		return;
	}
	s->old = *h;
	words = h->hop_words & 31;
	bytes = words * 4;
	if (h->version_flags >> 4 == 2 && !h->remaining) {
		h->version_flags |= FLAG_HOPS;
		count(&int_events, INT_HOPS, p->frame_bytes);
		write_int(skb, p, s, 0);
	} else if (!is_followed(h) || !words || h->words + words > 255) {
		count(&int_events, INT_FOREIGN, p->frame_bytes);
	} else if (total + bytes > mtu_of(node, p)) {
		h->version_flags |= FLAG_MTU;
		count(&int_events, INT_MTU, p->frame_bytes);
		write_int(skb, p, s, 0);
	} else if (resize(skb, p, s, bytes, INT_HEADERS)) {
		count(&int_events, INT_UNFIT, p->frame_bytes);
	} else {
		tell(s->metadata, bpf_ntohs(h->instructions), p, node->node_id, port);
		h->udp.length = bpf_htons(bpf_ntohs(h->udp.length) + bytes);
		h->words += words;
		h->remaining--;
		write_int(skb, p, s, words);
		set_ip(skb, p, total, total + bytes, 17, 17);
		count(&int_events, INT_ADDED, p->frame_bytes);
	}
}

static __always_inline void begin(struct __sk_buff *skb, struct packet *p, struct int_scratch *s, struct int_node *node,
				  __u16 port)
{
	struct int_headers *h = &s->headers;
	__u16 bits = p->watch_instructions & BITS_KNOWN;
	__u32 words = words_of(bits), added = p->watch_hops ? words : 0;
	__u8 flags = 0;

	if (!p->plain || (p->proto != 6 && p->proto != 17) || skb->gso_size) {
		count_packet(&int_events, INT_UNFIT, p);
		return;
	}
	if (p->ip_bytes + INT_HEADERS > mtu_of(node, p)) {
		count(&int_events, INT_NO_ROOM, p->frame_bytes);
		return;
	}
	if (p->ip_bytes + INT_HEADERS + added * 4 > mtu_of(node, p)) {
		flags = FLAG_MTU;
		added = 0;
	}
	__u32 bytes = INT_HEADERS + added * 4;

	if (resize(skb, p, s, bytes, 0)) {
		count(&int_events, INT_UNFIT, p->frame_bytes);
		return;
	}
	*h = (struct int_headers){.kind = SHIM_MD, .words = 3 + added, .proto = p->proto, .hop_words = words};
	h->udp.source = bpf_htons(source_port(p));
	h->udp.destination = bpf_htons(int_port);
	h->udp.length = bpf_htons(p->l4_bytes + bytes);
	h->version_flags = 2 << 4 | flags;
	h->remaining = p->watch_hops - (added != 0);
	h->instructions = bpf_htons(bits);
	tell(s->metadata, bits, p, node->node_id, port);
	write_int(skb, p, s, added);
	set_ip(skb, p, p->ip_bytes, p->ip_bytes + bytes, p->proto, 17);
	count(&int_events, INT_BEGUN, p->frame_bytes);
	if (flags)
		count(&int_events, INT_MTU, p->frame_bytes);
}

/* The last stage of a packet to one port. Not inlined, so that the stages before it are verified without it. */
static __noinline int send_with_int(struct __sk_buff *skb, struct packet *p, __u32 port, __u32 device)
{
	__u32 zero = 0;
	struct int_scratch *s = bpf_map_lookup_elem(&int_scratch, &zero);
	struct int_node *node = bpf_map_lookup_elem(&int_node, &port);

	if (!p || !s)
		return TC_ACT_SHOT;
	struct report *report = &s->request;

	*report = (struct report){.port = port, .flags = REPORT_TRACKED};
	if (!node || !node->valid) {
		if (!p->int_bytes)
			count(&int_events, INT_UNFIT, p->frame_bytes);
		return bpf_redirect(device, 0);
	}
	report->node_id = node->node_id;
	if (p->int_bytes && node->is_sink) {
		struct int_headers *h = (struct int_headers *)s->taken;

		if (take_out(skb, p, s)) {
			count(&int_events, INT_UNFIT, p->frame_bytes);
			return bpf_redirect(device, 0);
		}
		report->taken = p->int_bytes;
		report->bits = is_followed(h) ? bpf_ntohs(h->instructions) & BITS_TOLD : 0;
		if (h->version_flags >> 4 == 2 && h->version_flags & FLAG_DISCARD) {
			count(&int_events, INT_DISCARDED, p->frame_bytes);
			return send_report(skb, p, s, report);
		}
	} else if (p->int_bytes) {
		pass(skb, p, s, node, port);
		return bpf_redirect(device, 0);
	} else if (p->watch == WATCH_MD && !node->is_sink) {
		begin(skb, p, s, node, port);
		return bpf_redirect(device, 0);
	} else {
		report->bits = p->watch_instructions & BITS_TOLD; /* source and sink in one: nothing needs to be put in */
		leave_note(skb, p, node->node_id, port, device);
	}
	if (bpf_clone_redirect(skb, device, 0) == ERROR_NO_MEMORY) {
		count(&int_events, INT_REPORT_LOST, p->frame_bytes);
		return bpf_redirect(device, 0);
	}
	if (is_note_taken())
		return TC_ACT_SHOT;
	return send_report(skb, p, s, report);
}

/* Report a packet that is dropped, where it is watched or carries INT; returns what the program must. */
static __noinline int drop_with_int(struct __sk_buff *skb, struct packet *p, __u32 reason)
{
	__u32 zero = 0;
	struct int_scratch *s = bpf_map_lookup_elem(&int_scratch, &zero);

	if (!p || !s)
		return TC_ACT_SHOT;
	__u32 port = p->ingress_port;
	struct int_node *node = bpf_map_lookup_elem(&int_node, &port);

	if (!node || !node->valid)
		return TC_ACT_SHOT;
	struct report *report = &s->request;

	*report = (struct report){.node_id = node->node_id, .port = UNKNOWN_PORT, .reason = reason};
	report->flags = REPORT_DROPPED | REPORT_TRACKED;
	report->bits = ((p->int_bytes ? BIT_PORTS : p->watch_instructions) & BITS_TOLD & ~BIT_QUEUE) | BIT_DROP_REASON;
	return send_report(skb, p, s, report);
}

/* A flooded packet leaves without INT, and without a report: its copies would need headers of their own. */
static __noinline int take_out_of_flood(struct __sk_buff *skb, struct packet *p)
{
	__u32 zero = 0;
	struct int_scratch *s = bpf_map_lookup_elem(&int_scratch, &zero);

	if (!p || !s)
		return 0;
	__u32 port = p->ingress_port;
	struct int_node *node = bpf_map_lookup_elem(&int_node, &port);

	return node && node->valid && port != CPU_PORT ? take_out(skb, p, s) : 0;
}

#endif
