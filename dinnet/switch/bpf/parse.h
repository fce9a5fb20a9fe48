/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Ethernet to ports, as p4/include/parser.p4 does it. */
#ifndef DINNET_PARSE_H
#define DINNET_PARSE_H

#include "maps.h"

#define ETH_VLAN 0x8100
#define ETH_QINQ 0x88a8
#define ETH_IPV4 0x0800
#define ETH_IPV6 0x86dd
#define V4_MAPPED 0x0000ffff00000000ULL

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10

struct packet {
	__u64 src_hi, src_lo, dst_hi, dst_lo;
	__u64 now_ns;
	__u32 flow_label, key_label;
	__u32 seq, ack;
	__u32 frame_bytes; /* on the wire: of all segments, with their headers */
	__u32 segments;	   /* packets that it is on the wire; 1 but for offloads */
	__u16 sport, dport, vlan, inner_vlan;
	__u16 ip_bytes, l4_bytes, payload_bytes, window;
	__u16 ingress_port;
	__u16 l3; /* offset of the IP header */
	__u16 l4; /* of what follows it and its extensions; of INT's UDP header where there is one */
	__u16 int_bytes; /* UDP header, shim, INT header and metadata that are between IP and the transport header */
	__u8 version; /* 4, 6, or 0: no IP packet */
	__u8 proto, tos, ttl, tcp_flags, has_tcp, later_fragment;
	__u16 gso_bytes; /* payload of each segment but the last */
	__u16 rest_bytes; /* payload of the segments that are not in the record yet */
	__u16 link_mtu;	 /* of the egress interface; 0: not known */
	__u8 plain; /* neither a fragment nor with extension headers */
	/* the decision */
	__u8 slice, tc, colour;
	__u8 watch, watch_hops; /* enum watch_action, and with it */
	__u16 watch_instructions;
};

struct ipv4_header {
	__u8 version_ihl, tos;
	__be16 total_length, id, fragment;
	__u8 ttl, protocol;
	__be16 checksum;
	__be32 src, dst;
};

struct ipv6_header {
	__be32 version_class_label;
	__be16 payload_length;
	__u8 next_header, hop_limit;
	__be64 src[2], dst[2];
};

struct tcp_header {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset, flags;
	__be16 window, checksum, urgent;
};

static __always_inline void count_packet(void *counters, __u32 index, struct packet *p)
{
	struct cell *cell = bpf_map_lookup_elem(counters, &index);

	if (cell) {
		cell->packets += p->segments;
		cell->bytes += p->frame_bytes;
	}
}

enum verdict { PARSE_OK, PARSE_MALFORMED };

#define DIRECT_BYTES 512 /* how far into a frame a program looks without asking the kernel for a copy */

/* Copy a header; true where the frame ends before it does. LOAD is faster, COPY easier on the verifier. */
#define COPY(skb, offset, into) (bpf_skb_load_bytes(skb, offset, &(into), sizeof(into)) < 0)
#define LOAD(skb, offset, into)                                                                    \
	({                                                                                         \
		__u32 at_ = (offset);                                                              \
		void *end_ = (void *)(long)(skb)->data_end, *data_ = (void *)(long)(skb)->data;    \
		typeof(into) *from_ = data_ + (at_ & (DIRECT_BYTES - 1));                          \
		int bad_ = 0;                                                                      \
		if (at_ < DIRECT_BYTES && (void *)(from_ + 1) <= end_)                             \
			(into) = *from_;                                                           \
		else                                                                               \
			bad_ = COPY(skb, at_, into);                                               \
		bad_;                                                                              \
	})

struct udp_header {
	__be16 source, destination, length, checksum;
};

/* What a global function is given may be anything for the verifier afterwards: it looks at the stages that follow once,
 * and not once for each kind of packet. (Global functions with the packet itself need BTF in the kernel.) */
__noinline int forget(struct packet *p)
{
	asm volatile("" ::"r"(p) : "memory");
	return 0;
}

#define SHIM_MD 0x18 /* INT-MD, and another transport header behind it */
#define INT_HEADERS 24 /* UDP, shim, INT-MD header */

static __always_inline void take_tcp(struct packet *p, struct tcp_header *tcp)
{
	p->sport = bpf_ntohs(tcp->sport);
	p->dport = bpf_ntohs(tcp->dport);
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack);
	p->window = bpf_ntohs(tcp->window);
	p->tcp_flags = tcp->flags;
	p->has_tcp = 1;
}

/* What INT was put in front of, where it is there and whole; else the packet is like any other of UDP. */
static __noinline int parse_int(struct __sk_buff *skb, struct packet *p)
{
	struct {
		__u8 kind, words, reserved, proto;
	} shim;
	struct tcp_header tcp;
	struct udp_header udp;

	if (p->l4_bytes < INT_HEADERS)
		return PARSE_OK;
	if (COPY(skb, p->l4 + 8, shim))
		return PARSE_MALFORMED;
	__u16 bytes = 12 + shim.words * 4, header = 8;

	if ((shim.kind & 0xfc) != SHIM_MD || shim.words < 3 || (shim.proto != 6 && shim.proto != 17) ||
	    p->l4_bytes < bytes + (shim.proto == 6 ? 20 : 8))
		return PARSE_OK;
	if (shim.proto == 6) {
		if (COPY(skb, p->l4 + bytes, tcp))
			return PARSE_MALFORMED;
		header = (tcp.offset >> 4) * 4;
		if (header < 20 || p->l4_bytes < bytes + header)
			return PARSE_OK;
		take_tcp(p, &tcp);
	} else {
		if (COPY(skb, p->l4 + bytes, udp))
			return PARSE_MALFORMED;
		p->sport = bpf_ntohs(udp.source);
		p->dport = bpf_ntohs(udp.destination);
	}
	p->proto = shim.proto;
	p->int_bytes = bytes;
	p->ip_bytes -= bytes;
	p->l4_bytes -= bytes;
	p->payload_bytes = p->l4_bytes - header;
	return PARSE_OK;
}

static __always_inline int parse_transport(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct tcp_header tcp;
	struct udp_header udp;
	struct {
		__be16 source, destination;
	} ports;

	p->l4 = offset;
	forget(p);
	offset = p->l4;
	p->payload_bytes = p->l4_bytes;
	switch (p->proto) {
	case 6:
		if (p->l4_bytes < 20 || COPY(skb, offset, tcp))
			return PARSE_MALFORMED;
		__u16 header = (tcp.offset >> 4) * 4;
		if (header < 20 || p->l4_bytes < header)
			return PARSE_MALFORMED;
		take_tcp(p, &tcp);
		p->payload_bytes = p->l4_bytes - header;
		return PARSE_OK;
	case 17:
	case 136:
		if (p->l4_bytes < 8 || COPY(skb, offset, udp))
			return PARSE_MALFORMED;
		p->payload_bytes = p->l4_bytes - 8;
		p->sport = bpf_ntohs(udp.source);
		p->dport = bpf_ntohs(udp.destination);
		if (p->dport == int_port && p->proto == 17 && p->plain && bpf_ntohs(udp.length) == p->l4_bytes)
			return parse_int(skb, p);
		return PARSE_OK;
	case 33:
	case 132:
		if (p->l4_bytes < 4 || COPY(skb, offset, ports))
			return PARSE_MALFORMED;
		p->sport = bpf_ntohs(ports.source);
		p->dport = bpf_ntohs(ports.destination);
		return PARSE_OK;
	default:
		return PARSE_OK;
	}
}

/* Whether the whole of a header of `bytes` is there, in the IP packet and in the frame; then go behind it. */
static __always_inline int skip_header(struct __sk_buff *skb, struct packet *p, __u32 *offset, __u16 bytes)
{
	if (p->l4_bytes < bytes || *offset + bytes > skb->len)
		return PARSE_MALFORMED;
	p->l4_bytes -= bytes;
	*offset += bytes;
	return PARSE_OK;
}

static __always_inline int parse_extensions(struct __sk_buff *skb, struct packet *p, __u32 *offset)
{
	struct {
		__u8 next, length;
		__be16 offset;
	} head;
	__u16 bytes;

	for (int i = 0; i <= EXTENSIONS; i++) {
		p->l4 = *offset;
		forget(p);
		*offset = p->l4;
		switch (p->proto) {
		case 0:
		case 43:
		case 60:
		case 135:
		case 139:
		case 140:
		case 44:
		case 51:
			break;
		default:
			return PARSE_OK;
		}
		if (i == EXTENSIONS)
			break; /* more than are looked behind: no ports */
		if (COPY(skb, *offset, head))
			return PARSE_MALFORMED;
		if (p->proto == 44) {
			bytes = 8;
			p->later_fragment = (bpf_ntohs(head.offset) & 0xfff8) != 0;
		} else if (p->proto == 51) {
			bytes = (head.length + 2) * 4;
		} else {
			bytes = (head.length + 1) * 8;
		}
		if (skip_header(skb, p, offset, bytes))
			return PARSE_MALFORMED;
		p->proto = head.next;
		if (p->later_fragment)
			return PARSE_OK;
	}
	return PARSE_OK;
}

static __always_inline int parse_ipv4(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct ipv4_header ip;
	struct {
		__u8 next, length;
	} head;

	if (LOAD(skb, offset, ip))
		return PARSE_MALFORMED;
	__u16 header = (ip.version_ihl & 15) * 4, total = bpf_ntohs(ip.total_length);
	if (ip.version_ihl >> 4 != 4 || header < 20 || total < header || offset + header > skb->len)
		return PARSE_MALFORMED;
	p->version = 4;
	p->src_hi = p->dst_hi = 0;
	p->src_lo = V4_MAPPED | bpf_ntohl(ip.src);
	p->dst_lo = V4_MAPPED | bpf_ntohl(ip.dst);
	p->tos = ip.tos;
	p->ttl = ip.ttl;
	p->proto = ip.protocol;
	p->ip_bytes = total;
	p->l4_bytes = total - header;
	p->later_fragment = (bpf_ntohs(ip.fragment) & 0x1fff) != 0;
	p->plain = (bpf_ntohs(ip.fragment) & 0x3fff) == 0 && p->proto != 51;
	offset += header;
	p->l4 = offset;
	if (p->later_fragment)
		return PARSE_OK;
	if (p->proto == 51) {
		if (COPY(skb, offset, head) || skip_header(skb, p, &offset, (head.length + 2) * 4))
			return PARSE_MALFORMED;
		p->proto = head.next;
	}
	return parse_transport(skb, p, offset);
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, struct packet *p, __u32 offset)
{
	struct ipv6_header ip;

	if (LOAD(skb, offset, ip))
		return PARSE_MALFORMED;
	__u32 word = bpf_ntohl(ip.version_class_label);
	__u16 payload = bpf_ntohs(ip.payload_length);
	if (word >> 28 != 6 || payload > 65495)
		return PARSE_MALFORMED;
	p->version = 6;
	p->src_hi = bpf_be64_to_cpu(ip.src[0]);
	p->src_lo = bpf_be64_to_cpu(ip.src[1]);
	p->dst_hi = bpf_be64_to_cpu(ip.dst[0]);
	p->dst_lo = bpf_be64_to_cpu(ip.dst[1]);
	p->tos = word >> 20;
	p->flow_label = word & 0xfffff;
	p->ttl = ip.hop_limit;
	p->proto = ip.next_header;
	p->ip_bytes = payload + 40;
	p->l4_bytes = payload;
	offset += 40;
	if (parse_extensions(skb, p, &offset))
		return PARSE_MALFORMED;
	p->l4 = offset;
	p->plain = offset == p->l3 + 40;
	return p->later_fragment ? PARSE_OK : parse_transport(skb, p, offset);
}

/* Fill `p`, which is all zeros. A VLAN tag may have been taken out of the frame by the kernel. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	__be16 type;
	__u32 offset = 14;
	int tags = 0;
	struct {
		__be16 tci, type;
	} tag;

	if (LOAD(skb, 12, type))
		return PARSE_MALFORMED;
	if (skb->vlan_present) {
		p->vlan = skb->vlan_tci & 0xfff;
		tags = 1;
	}
	for (int i = 0; i < 2; i++) {
		if ((type != bpf_htons(ETH_VLAN) && type != bpf_htons(ETH_QINQ)) || tags == 2)
			break;
		if (LOAD(skb, offset, tag))
			return PARSE_MALFORMED;
		if (tags++)
			p->inner_vlan = bpf_ntohs(tag.tci) & 0xfff;
		else
			p->vlan = bpf_ntohs(tag.tci) & 0xfff;
		type = tag.type;
		offset += 4;
	}
	p->l3 = offset;
	forget(p);
	offset = p->l3;
	if (type == bpf_htons(ETH_IPV4))
		return parse_ipv4(skb, p, offset);
	if (type == bpf_htons(ETH_IPV6))
		return parse_ipv6(skb, p, offset);
	return PARSE_OK;
}

#endif
