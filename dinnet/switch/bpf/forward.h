/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Where a packet goes, as p4/include/forward.p4 does it. */
#ifndef DINNET_FORWARD_H
#define DINNET_FORWARD_H

#include "parse.h"

static __always_inline struct forward *find_forward(struct __sk_buff *skb, struct packet *p)
{
	struct forward *found = 0;
	__u32 zero = 0;

	if (p->version == 4) {
		struct route_v4_key key = {.prefix_bits = 32};
		__be32 dst = bpf_htonl((__u32)p->dst_lo);

		__builtin_memcpy(key.dst, &dst, 4);
		found = bpf_map_lookup_elem(&forward_v4, &key);
	} else if (p->version == 6) {
		struct {
			__u32 prefix_bits;
			__be64 dst[2];
		} __attribute__((packed)) key = {128, {bpf_cpu_to_be64(p->dst_hi), bpf_cpu_to_be64(p->dst_lo)}};

		found = bpf_map_lookup_elem(&forward_v6, &key);
	}
	if (found)
		return found;
	struct station_key station = {.vlan = p->vlan};

	struct {
		__u16 words[3];
	} mac;

	if (LOAD(skb, 0, mac))
		return 0;
	__builtin_memcpy(station.mac, &mac, 6);
	found = bpf_map_lookup_elem(&forward_l2, &station);
	return found ? found : bpf_map_lookup_elem(&forward_default, &zero);
}

/* One hop less. RFC 1624, equation 3, is what the helper computes. */
static __always_inline enum drop take_hop(struct __sk_buff *skb, struct packet *p)
{
	if (p->ttl <= 1)
		return DROP_TTL;
	__u8 ttl = p->ttl - 1;

	if (p->version == 4) {
		bpf_l3_csum_replace(skb, p->l3 + 10, bpf_htons(p->ttl << 8), bpf_htons(ttl << 8), 2);
		bpf_skb_store_bytes(skb, p->l3 + 8, &ttl, 1, 0);
	} else {
		bpf_skb_store_bytes(skb, p->l3 + 7, &ttl, 1, BPF_F_RECOMPUTE_CSUM);
	}
	return KEPT;
}

static __always_inline void set_stations(struct __sk_buff *skb, const __u8 *src, const __u8 *dst)
{
	bpf_skb_store_bytes(skb, 0, dst, 6, 0);
	bpf_skb_store_bytes(skb, 6, src, 6, 0);
}

#endif
