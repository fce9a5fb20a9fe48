/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* What the loader and the pipeline agree on: keys and values of the maps, and events.
 *
 * Python takes these layouts from the object's own type information; sizes are the P4 program's. Addresses are two
 * 64-bit numbers, IPv4 as IPv4-mapped IPv6, as in dinnet.capture.packet. Numbers are in host order where nothing else
 * is said.
 */
#ifndef DINNET_CONTRACT_H
#define DINNET_CONTRACT_H

#include <linux/bpf.h>
#include <linux/types.h>

#include "../../../p4/include/sizes.p4"

#define PACKET_OUT_BYTES 2 /* P4 counts the header of the controller's packets with the frame */
#define MAX_GROUP_PORTS 64
#define MAX_MASKS 64	 /* combinations of masks in slice_select */
#define EXCEED_DEFAULT 64
#define FLOW_WAYS 4	 /* flows that share a set of the flow table */
#define EVENT_PACKET_BYTES 2048

/* DROP_MTU: not in the P4 program, which does not know the links; the kernel would lose the packet without a word. */
enum drop {
	KEPT,
	DROP_MALFORMED,
	DROP_NO_ROUTE,
	DROP_TTL,
	DROP_FORWARD,
	DROP_MICROFLOW,
	DROP_SLICE,
	DROP_MTU,
	DROP_CELLS
};
/* What the program leaves in skb->cb for who runs it in a test: the word's place, and what is in it. */
enum shown { SHOWN_WAY, /* forward_action, egress port or group << 8, drop << 24 */
	     SHOWN_MARK, /* 1, slice << 8, tc << 16, colour << 24 */
	     SHOWN_MICROFLOW /* its id */ };

enum parsed { PARSED_NOT_IP, PARSED_IPV4, PARSED_IPV6, PARSED_FRAGMENT, PARSED_MALFORMED, PARSED_CELLS = 8 };
enum colour { GREEN, YELLOW, RED };
enum bucket { ABOVE_NONE, ABOVE_MICROFLOW, ABOVE_SLICE };
enum exceed_action { DEGRADE, REROUTE, DROP };
enum forward_action { FORWARD_MISS, FORWARD_PORT, FORWARD_ROUTE, FORWARD_FLOOD, FORWARD_DROP, FORWARD_CONTROLLER };
enum end { LIVE, IDLE, ACTIVE, FIN, RST, REUSE, EVICTED = 7 };

struct port_config {
	__u16 port;
	__u8 trusted;
	__u8 flow_labels;
};

struct route_v4_key {
	__u32 prefix_bits;
	__u8 dst[4];
};

struct route_v6_key {
	__u32 prefix_bits;
	__u8 dst[16];
};

struct forward {
	__u8 action; /* enum forward_action */
	__u8 pad;
	__u16 port; /* FORWARD_FLOOD: the multicast group */
	__u8 src[6];
	__u8 dst[6];
};

struct station_key {
	__u16 vlan;
	__u8 mac[6];
};

struct group {
	__u32 count;
	__u16 ports[MAX_GROUP_PORTS];
};

struct mark {
	__u8 valid;
	__u8 slice;
	__u8 tc;
	__u8 dscp;
};

/* What slice_select looks at, as 32-bit words to be masked. */
struct select_fields {
	__u64 src_hi, src_lo, dst_hi, dst_lo;
	__u16 ingress_port;
	__u16 sport;
	__u16 dport;
	__u16 vlan;
	__u32 proto;
	__u32 mask_id; /* the number of the masks that were applied, or that these are */
};

struct select_mask {
	struct select_fields fields;
	__u32 best_priority; /* of the entries with these masks; 0: not in use */
	__u32 pad;
};

struct select_entry {
	__u32 priority;
	__u32 state; /* cell of select_state */
	__u8 slice;
	__u8 tc;
	__u16 pad;
};

enum watch_action { WATCH_NONE, WATCH_MD, WATCH_XD };

/* Begins as struct select_entry does. */
struct watch_entry {
	__u32 priority;
	__u32 state; /* cell of int_watch_state */
	__u8 action; /* enum watch_action */
	__u8 hops;   /* that may add metadata */
	__u16 instructions;
};

/* What this switch is to INT packets that leave by a port. */
struct int_node {
	__u32 node_id;
	__u16 mtu; /* of IP packets on the link */
	__u8 is_sink;
	__u8 valid;
};

struct int_collector {
	__u8 dst_mac[6];
	__u8 src_mac[6];
	__be32 src, dst;
	__u16 sport, dport;
	__u16 port; /* that reports leave by */
	__u16 pad;
};

enum int_event {
	INT_BEGUN,	 /* source: header put in */
	INT_ADDED,	 /* transit: metadata put in */
	INT_ENDED,	 /* sink: everything taken out */
	INT_REPORTED,
	INT_UNFIT,	 /* watched, but cannot carry INT: fragment, extension header, protocol, segments to be cut yet */
	INT_NO_ROOM,	 /* watched, but the header would exceed the MTU */
	INT_MTU,	 /* M bit set */
	INT_HOPS,	 /* E bit set */
	INT_FOREIGN,	 /* transit: instructions that are not followed */
	INT_DISCARDED,	 /* sink: D bit */
	INT_REPORT_LOST, /* there is no collector, or the kernel refused */
	INT_CELLS = 16
};

struct microflow_key {
	__u64 src_hi, src_lo, dst_hi, dst_lo;
	__u32 flow_label;
	__u16 sport;
	__u16 dport;
	__u16 vlan;
	__u8 proto;
	__u8 pad[5];
};

struct microflow {
	__u32 id;
	__u32 state; /* cell of microflow_state and of microflow_meter */
	__u8 slice;
	__u8 tc;
	__u8 metered;
	__u8 pad[5];
	__u64 idle_ns; /* the idle timeout, of which the program knows nothing; 0: none */
};

/* A token bucket counts in nanobytes: bytes times 10^9, so that nanoseconds times bytes per second add up exactly. */
struct token_bucket {
	__u64 rate;    /* bytes per second */
	__u64 burst;   /* nanobytes */
	__u64 tokens;  /* nanobytes */
	__u64 fill_ns; /* from empty to full; all ones: never */
};

/* Two-rate three-colour marker (RFC 2698), colour-blind. */
struct meter {
	__u32 sequence;
	__u32 configured;
	__u64 last_ns;
	struct token_bucket committed;
	struct token_bucket peak;
};

struct cell {
	__u64 packets;
	__u64 bytes;
};

struct microflow_state {
	struct cell counter;
	__u64 last_ns; /* of the last packet, for the idle timeout */
};

struct exceed {
	__u8 action; /* enum exceed_action */
	__u8 pad;
	__u16 port;
	__u8 src[6];
	__u8 dst[6];
};

/* One direction of a flow record: dinnet.flows.record.DIRECTION_DTYPE. */
struct flow_side {
	__u64 bytes, payload_bytes, len_sumsq, iat_sum_us, iat_sumsq_us, gap_sum_us, gap_sumsq_us, burst_max_bytes, window_sum;
	__u32 packets, payload_packets, len_min, len_max, iat_min_us, iat_max_us, window_min;
	__u32 syn, fin, rst, psh, ack, pure_ack, full_segments, bursts, turn_delay_max_us;
	__u64 turn_delay_sum_us;
};

/* dinnet.flows.record.RECORD_DTYPE. */
struct flow_record {
	__u64 src_hi, src_lo, dst_hi, dst_lo;
	__s64 first_us;
	__u64 duration_us;
	__u32 flow_label, tunnel_id, turns, checkpoint;
	__u16 sport, dport, vlan, inner_vlan;
	__u8 proto, ip_version, end, syn_seen;
	__u32 splt_rev;
	__u32 splt_gap_us[8], turn_bytes[6], turn_wait_us[6];
	__u16 splt_bytes[8];
	struct flow_side sides[2];
};

/* What is needed to go on with a flow. */
struct flow_work {
	__u64 last_us, last_checkpoint_us;
	__u64 side_last_us[2], side_last_payload_us[2], burst_bytes[2];
	__u32 next_checkpoint, isn;
	__u32 flow_label; /* of the key */
	__u8 last_payload_side, fins, closed, used;
	__u8 isn_known, forward_seen, payload_packets, pad;
	__u16 ingress_port, pad2;
};

struct flow {
	struct flow_record record;
	struct flow_work work;
};

struct flow_set {
	__u32 sequence;
	__u32 pad;
	struct flow ways[FLOW_WAYS];
};

enum event_kind { EVENT_RECORD = 1, EVENT_PACKET_IN = 2, EVENT_QUEUE = 3 };

struct record_event {
	__u16 kind;
	__u16 ingress_port;
	__u32 pad;
	struct flow_record record;
};

struct packet_event {
	__u16 kind;
	__u16 ingress_port;
	__u32 length;	 /* of the packet, of which `data` holds the beginning */
	__u16 vlan_type; /* of the tag that the kernel took out of the frame; 0: none */
	__u16 vlan_tci;
	__u8 data[EVENT_PACKET_BYTES];
};

/* A class of a port's egress queue. */
struct queue_key {
	__u32 ifindex;
	__u32 classid; /* skb->priority where it names a class, else 0 */
};

/* Steps of a quarter of an octave: 4 * the place of the highest bit + the next two bits. */
#define RESIDENCE_STEPS 168

struct queue {
	__u64 enqueued_packets, enqueued_bytes;
	__u64 packets, bytes; /* that have left; a packet is what is on the wire, as tc counts */
	__u64 drops, drop_bytes;
	__u64 backlog_packets, backlog_bytes, backlog_max_packets, backlog_max_bytes;
	__u64 found_packets, found_bytes; /* sums of the backlog that packets found */
	__u64 timed; /* whose time is in what follows; a packet to be cut later is one */
	__u64 residence_sum_ns, residence_max_ns;
	__u64 residence[RESIDENCE_STEPS];
};

struct queue_drop_key {
	__u32 ifindex;
	__u32 classid;
	__u32 reason; /* enum skb_drop_reason of the kernel that runs */
};

enum queue_miss { QUEUE_NO_ROOM, /* too many packets, or classes, at once */
		  QUEUE_LOCKLESS, /* pfifo_fast: it tells of a packet after it may have left */
		  QUEUE_CUT, /* segmented by the qdisc */
		  QUEUE_VANISHED, /* neither left nor dropped */
		  QUEUE_CELLS = 8 };

/* What ingress leaves for who sees the packet come into a queue, to be reported on when it leaves that. */
struct queue_note {
	__u64 ingress_ns;
	__u32 ifindex; /* of egress; 0: there is no note */
	__u32 length;
	__u32 taken;
	__u32 node_id, frame_bytes;
	__u16 bits, ingress_port, egress_port, head_bytes;
	__u8 version, slice, tc, tos, ttl, pad[3];
	__u8 head[INT_REPORT_BYTES]; /* of the packet, from the IP header on */
};

struct queue_event {
	__u16 kind;
	__u8 dropped, pad;
	__u32 sequence; /* the report's */
	__u64 egress_ns;
	__u32 occupancy; /* packets of its class that it found */
	__u32 pad2;
	struct queue_note note;
};

/* No map has it, so that Python must know its layout. */
_Static_assert(__builtin_offsetof(struct queue_event, sequence) == 4 &&
		       __builtin_offsetof(struct queue_event, egress_ns) == 8 &&
		       __builtin_offsetof(struct queue_event, occupancy) == 16 &&
		       __builtin_offsetof(struct queue_event, note) == 24,
	       "struct queue_event is not what dinnet/switch/contract.py says");

#endif
