#ifndef HEADERS_P4
#define HEADERS_P4

#include "sizes.p4"

const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_QINQ = 0x88a8;
const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_IPV6 = 0x86dd;

const bit<8> PROTO_HOP_BY_HOP = 0;
const bit<8> PROTO_TCP = 6;
const bit<8> PROTO_UDP = 17;
const bit<8> PROTO_DCCP = 33;
const bit<8> PROTO_ROUTING = 43;  // SRv6 among them
const bit<8> PROTO_FRAGMENT = 44;
const bit<8> PROTO_AH = 51;
const bit<8> PROTO_DEST_OPTIONS = 60;
const bit<8> PROTO_SCTP = 132;
const bit<8> PROTO_MOBILITY = 135;
const bit<8> PROTO_UDPLITE = 136;
const bit<8> PROTO_HIP = 139;
const bit<8> PROTO_SHIM6 = 140;

typedef bit<9> port_t;
typedef bit<48> mac_t;

header ethernet_t {
    mac_t dst;
    mac_t src;
    bit<16> ether_type;
}

header vlan_t {
    bit<3> pcp;
    bit<1> dei;
    bit<12> vid;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv4_options_t {
    varbit<320> options;
}

header ipv6_t {
    bit<4> version;
    bit<6> dscp;
    bit<2> ecn;
    bit<20> flow_label;
    bit<16> payload_length;
    bit<8> next_header;
    bit<8> hop_limit;
    bit<128> src;
    bit<128> dst;
}

// An IPv6 extension header of any kind, or AH behind either IP: kept as it is.
header extension_t {
    bit<8> next_header;
    bit<8> length;  // in units of 8 bytes beyond the first 8; AH: of 4 bytes beyond the first 8; fragment: reserved
    varbit<16368> body;
}

header tcp_t {
    bit<16> sport;
    bit<16> dport;
    bit<32> seq;
    bit<32> ack;
    bit<4> data_offset;
    bit<4> reserved;
    bit<8> flags;
    bit<16> window;
    bit<16> checksum;
    bit<16> urgent;
}

header udp_t {
    bit<16> sport;
    bit<16> dport;
    bit<16> length;
    bit<16> checksum;
}

// What SCTP and DCCP begin with.
header ports_t {
    bit<16> sport;
    bit<16> dport;
}

// INT over UDP, in front of the original transport header (INT 2.1, 5.7.2 and 5.8).
header int_shim_t {
    bit<4> type;
    bit<2> npt;
    bit<2> reserved;
    bit<8> words;  // behind the shim
    bit<8> reserved2;
    bit<8> proto;  // of the original transport header
}

header int_md_t {
    bit<4> version;
    bit<1> discard;
    bit<1> hops_exceeded;
    bit<1> mtu_exceeded;
    bit<12> reserved;
    bit<5> hop_words;
    bit<8> remaining;
    bit<16> instructions;
    bit<16> domain;
    bit<16> domain_instructions;
    bit<16> domain_flags;
}

// What the nodes before this one told.
header int_stack_t {
    varbit<8064> words;
}

header word_t {
    bit<32> word;
}

header long_t {
    bit<64> word;
}

// Group header and individual report of type INT (Telemetry Report 2.0, 3.2 and 3.3).
header report_t {
    bit<4> version;
    bit<6> hardware_id;
    bit<22> sequence;
    bit<32> node_id;
    bit<4> report_type;
    bit<4> inner_type;
    bit<8> words;
    bit<8> metadata_words;
    bit<8> flags;
    bit<16> present;
    bit<16> domain;
    bit<16> domain_bits;
    bit<16> domain_status;
}

@controller_header("packet_in")
header packet_in_t {
    port_t ingress_port;
    bit<7> pad;
}

@controller_header("packet_out")
header packet_out_t {
    port_t egress_port;  // NO_PORT: as if it had come in on the controller's port
    bit<7> pad;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t report_ethernet;
    ipv4_t report_ipv4;
    udp_t report_udp;
    report_t report;
    word_t report_ports;
    word_t report_queue;
    long_t report_time;
    long_t report_interfaces;
    word_t report_drop;
    ethernet_t ethernet;
    vlan_t vlan;
    vlan_t inner_vlan;
    ipv4_t ipv4;
    ipv4_options_t ipv4_options;
    ipv6_t ipv6;
    extension_t[EXTENSIONS] extensions;
    udp_t int_udp;
    int_shim_t int_shim;
    int_md_t int_md;
    word_t int_node_id;
    word_t int_ports;
    word_t int_latency;
    word_t int_queue;
    long_t int_ingress_time;
    long_t int_egress_time;
    long_t int_interfaces;
    word_t int_utilization;
    word_t int_buffer;
    word_t int_complement;
    int_stack_t int_stack;
    tcp_t tcp;
    udp_t udp;
    ports_t ports;
}

#endif
