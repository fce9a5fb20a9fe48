#ifndef METADATA_P4
#define METADATA_P4

#include "headers.p4"

typedef bit<4> slice_t;
typedef bit<2> tc_t;

const bit<2> GREEN = 0;   // colours of trTCM (RFC 2698) as v1model numbers them
const bit<2> YELLOW = 1;
const bit<2> RED = 2;

// Which token bucket a packet was above.
enum bit<2> bucket_t {
    NONE = 0,
    MICROFLOW = 1,
    SLICE = 2
}

// Why a packet was dropped: cells of the counter `drops`.
enum bit<8> drop_t {
    KEPT = 0,
    MALFORMED = 1,  // a header that contradicts itself or that the packet ends in
    NO_ROUTE = 2,   // neither a route nor a station
    TTL = 3,        // routed, with no hop left
    FORWARD = 4,    // a forwarding entry says so
    MICROFLOW = 5,  // above the micro-flow's token bucket
    SLICE = 6       // above the slice's
}

// What a packet is: cells of the counter `parsed`.
enum bit<8> parsed_t {
    NOT_IP = 0,     // forwarded unmarked
    IPV4 = 1,
    IPV6 = 2,
    FRAGMENT = 3,   // of IP, not the first: no ports, no flow record
    MALFORMED = 4
}

// Why a flow record was emitted; equal to those of the capture reader.
enum bit<8> end_t {
    LIVE = 0,
    IDLE = 1,
    ACTIVE = 2,
    FIN = 3,
    RST = 4,
    REUSE = 5,
    // 6 is the capture reader's own: the capture ended.
    EVICTED = 7  // its place in the table was needed
}

// The flow record of one direction.
#define SIDE_RECORD(side)            \
    bit<64> side##_bytes;            \
    bit<64> side##_payload_bytes;    \
    bit<64> side##_len_sumsq;        \
    bit<64> side##_iat_sum_us;       \
    bit<64> side##_iat_sumsq_us;     \
    bit<64> side##_gap_sum_us;       \
    bit<64> side##_gap_sumsq_us;     \
    bit<64> side##_burst_max_bytes;  \
    bit<64> side##_window_sum;       \
    bit<32> side##_packets;          \
    bit<32> side##_payload_packets;  \
    bit<32> side##_len_min;          \
    bit<32> side##_len_max;          \
    bit<32> side##_iat_min_us;       \
    bit<32> side##_iat_max_us;       \
    bit<32> side##_window_min;       \
    bit<32> side##_syn;              \
    bit<32> side##_fin;              \
    bit<32> side##_rst;              \
    bit<32> side##_psh;              \
    bit<32> side##_ack;              \
    bit<32> side##_pure_ack;         \
    bit<32> side##_full_segments;    \
    bit<32> side##_bursts;           \
    bit<32> side##_turn_delay_max_us; \
    bit<64> side##_turn_delay_sum_us;

// Sent to the controller at each checkpoint. Names and meanings are those of `dinnet.flows.record`; `first_us` is by
// the switch's own clock.
struct flow_record_t {
    bit<128> src;
    bit<128> dst;
    bit<48> first_us;
    bit<64> duration_us;
    bit<20> flow_label;
    bit<32> turns;
    bit<32> checkpoint;
    bit<16> sport;
    bit<16> dport;
    bit<12> vlan;
    bit<12> inner_vlan;
    bit<8> proto;
    bit<4> ip_version;
    bit<8> end;  // an end_t: BMv2's server takes no enums in digests
    bit<1> syn_seen;
    port_t ingress_port;
    bit<8> splt_rev;
    bit<32> splt_gap_us_1; bit<32> splt_gap_us_2; bit<32> splt_gap_us_3; bit<32> splt_gap_us_4;
    bit<32> splt_gap_us_5; bit<32> splt_gap_us_6; bit<32> splt_gap_us_7; bit<32> splt_gap_us_8;
    bit<32> turn_bytes_1; bit<32> turn_bytes_2; bit<32> turn_bytes_3;
    bit<32> turn_bytes_4; bit<32> turn_bytes_5; bit<32> turn_bytes_6;
    bit<32> turn_wait_us_1; bit<32> turn_wait_us_2; bit<32> turn_wait_us_3;
    bit<32> turn_wait_us_4; bit<32> turn_wait_us_5; bit<32> turn_wait_us_6;
    bit<16> splt_bytes_1; bit<16> splt_bytes_2; bit<16> splt_bytes_3; bit<16> splt_bytes_4;
    bit<16> splt_bytes_5; bit<16> splt_bytes_6; bit<16> splt_bytes_7; bit<16> splt_bytes_8;
    SIDE_RECORD(fwd)
    SIDE_RECORD(rev)
}

struct metadata_t {
    // What the parser found; both IPs alike. An IPv4 address is its IPv4-mapped IPv6 address (RFC 4291 2.5.5.2).
    bit<128> src;
    bit<128> dst;
    bit<8> proto;
    bit<16> sport;
    bit<16> dport;
    bit<20> flow_label;
    bit<12> vlan;
    bit<12> inner_vlan;
    bit<6> dscp;
    bit<16> ip_bytes;        // total length
    bit<16> l4_bytes;        // of it, behind the IP headers
    bit<1> is_ip;
    bit<1> is_later_fragment;
    bit<1> is_plain;         // neither a fragment nor with extension headers
    bit<16> int_bytes;       // of INT, of which the lengths above know nothing
    bit<1> has_tcp;
    bit<16> payload_bytes;

    // The ingress port's configuration.
    bit<1> trusted;          // its DSCP counts
    bit<1> split_labels;     // flow labels are part of the keys

    // The decision.
    bit<20> key_label;       // the flow label, 0 where it is no part of the key
    slice_t slice;
    tc_t tc;
    bit<32> microflow_id;
    bit<2> microflow_colour;
    bit<2> slice_colour;
    bit<2> colour;           // the worse of the two
    bucket_t above;
    bit<1> routed;
    drop_t dropped;

    // What INT does to the packet.
    bit<16> int_told;        // instructions that are followed
    bit<1> int_changed;      // headers that a UDP checksum counts
    bit<32> int_sum;         // what it changes by
    @field_list(INT_FIELDS) port_t report_ingress;
    @field_list(INT_FIELDS) bit<16> report_kept;  // bytes of the packet, from IP on
    @field_list(INT_FIELDS) bit<16> report_bits;
    @field_list(INT_FIELDS) bit<8> report_flags;
    @field_list(INT_FIELDS) drop_t report_reason;
    @field_list(INT_FIELDS) bit<32> report_node;
    @field_list(INT_FIELDS) bit<16> report_port;
    @field_list(INT_FIELDS) bit<8> report_queue;
    @field_list(INT_FIELDS) bit<48> report_time;

    flow_record_t record;
}

#endif
