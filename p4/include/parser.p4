#ifndef PARSER_P4
#define PARSER_P4

#include "metadata.p4"

error {
    BadIpHeader,        // version, header length or total length contradict each other
    BadTransportHeader  // the IP packet ends in it
}

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_VLAN: parse_vlan;
            ETHERTYPE_QINQ: parse_vlan;
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.vlan);
        meta.vlan = hdr.vlan.vid;
        transition select(hdr.vlan.ether_type) {
            ETHERTYPE_VLAN: parse_inner_vlan;
            ETHERTYPE_QINQ: parse_inner_vlan;
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_inner_vlan {
        packet.extract(hdr.inner_vlan);
        meta.inner_vlan = hdr.inner_vlan.vid;
        transition select(hdr.inner_vlan.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;  // a third tag among them: no IP packet to us
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4 && hdr.ipv4.ihl >= 5, error.BadIpHeader);
        bit<16> header_bytes = (bit<16>) hdr.ipv4.ihl << 2;
        verify(hdr.ipv4.total_length >= header_bytes, error.BadIpHeader);
        packet.extract(hdr.ipv4_options, ((bit<32>) hdr.ipv4.ihl - 5) << 5);
        meta.is_ip = 1;
        meta.src = (bit<128>) (16w0xffff ++ hdr.ipv4.src);
        meta.dst = (bit<128>) (16w0xffff ++ hdr.ipv4.dst);
        meta.dscp = hdr.ipv4.dscp;
        meta.proto = hdr.ipv4.protocol;
        meta.ip_bytes = hdr.ipv4.total_length;
        meta.l4_bytes = hdr.ipv4.total_length - header_bytes;
        meta.is_later_fragment = hdr.ipv4.fragment_offset == 0 ? 1w0 : 1w1;
        meta.is_plain = ~meta.is_later_fragment & ~hdr.ipv4.more_fragments;
        transition select(meta.is_later_fragment, meta.proto) {
            (1, _): accept;
            (0, PROTO_AH): parse_ah;
            default: parse_transport;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        verify(hdr.ipv6.version == 6, error.BadIpHeader);
        verify(hdr.ipv6.payload_length <= 65495, error.BadIpHeader);  // so that the total fits 16 bits
        meta.is_ip = 1;
        meta.src = hdr.ipv6.src;
        meta.dst = hdr.ipv6.dst;
        meta.dscp = hdr.ipv6.dscp;
        meta.flow_label = hdr.ipv6.flow_label;
        meta.proto = hdr.ipv6.next_header;
        meta.ip_bytes = hdr.ipv6.payload_length + 40;
        meta.l4_bytes = hdr.ipv6.payload_length;
        meta.is_plain = 1;
        transition parse_next_header;
    }

    state parse_next_header {
        transition select(meta.proto) {
            PROTO_HOP_BY_HOP: parse_extension;
            PROTO_ROUTING: parse_extension;
            PROTO_DEST_OPTIONS: parse_extension;
            PROTO_MOBILITY: parse_extension;
            PROTO_HIP: parse_extension;
            PROTO_SHIM6: parse_extension;
            PROTO_FRAGMENT: parse_fragment;
            PROTO_AH: parse_ah;
            default: parse_transport;
        }
    }

    state parse_extension {
        meta.is_plain = 0;
        bit<16> header_bytes = ((bit<16>) packet.lookahead<bit<16>>()[7:0] + 1) << 3;
        verify(meta.l4_bytes >= header_bytes, error.BadIpHeader);
        packet.extract(hdr.extensions.next, ((bit<32>) header_bytes - 2) << 3);
        meta.proto = hdr.extensions.last.next_header;
        meta.l4_bytes = meta.l4_bytes - header_bytes;
        transition parse_next_header;
    }

    state parse_ah {
        meta.is_plain = 0;
        bit<16> header_bytes = ((bit<16>) packet.lookahead<bit<16>>()[7:0] + 2) << 2;
        verify(meta.l4_bytes >= header_bytes, error.BadIpHeader);
        packet.extract(hdr.extensions.next, ((bit<32>) header_bytes - 2) << 3);
        meta.proto = hdr.extensions.last.next_header;
        meta.l4_bytes = meta.l4_bytes - header_bytes;
        transition select(hdr.ipv6.isValid()) {
            true: parse_next_header;
            default: parse_transport;
        }
    }

    state parse_fragment {
        meta.is_plain = 0;
        verify(meta.l4_bytes >= 8, error.BadIpHeader);
        bit<13> offset = packet.lookahead<bit<32>>()[15:3];
        packet.extract(hdr.extensions.next, 48);
        meta.proto = hdr.extensions.last.next_header;
        meta.l4_bytes = meta.l4_bytes - 8;
        meta.is_later_fragment = offset == 0 ? 1w0 : 1w1;
        transition select(meta.is_later_fragment) {
            1: accept;
            default: parse_next_header;
        }
    }

    state parse_transport {
        meta.payload_bytes = meta.l4_bytes;
        transition select(meta.proto) {
            PROTO_TCP: parse_tcp;
            PROTO_UDP: parse_udp;
            PROTO_UDPLITE: parse_udp;
            PROTO_SCTP: parse_ports;
            PROTO_DCCP: parse_ports;
            default: accept;
        }
    }

    state parse_tcp {
        verify(meta.l4_bytes >= 20, error.BadTransportHeader);
        packet.extract(hdr.tcp);
        verify(hdr.tcp.data_offset >= 5, error.BadTransportHeader);
        bit<16> header_bytes = (bit<16>) hdr.tcp.data_offset << 2;
        verify(meta.l4_bytes >= header_bytes, error.BadTransportHeader);
        meta.sport = hdr.tcp.sport;
        meta.dport = hdr.tcp.dport;
        meta.payload_bytes = meta.l4_bytes - header_bytes;
        meta.has_tcp = 1;
        transition accept;
    }

    state parse_udp {
        verify(meta.l4_bytes >= 8, error.BadTransportHeader);
        bit<64> udp = packet.lookahead<bit<64>>();
        bool may_have_int = udp[47:32] == INT_PORT && udp[31:16] == meta.l4_bytes && meta.l4_bytes >= 24 &&
                            meta.proto == PROTO_UDP && meta.is_plain == 1;
        transition select(may_have_int) {
            true: look_for_int;
            default: parse_udp_header;
        }
    }

    // INT in front of another transport header, whole; else the packet is like any other of UDP.
    state look_for_int {
        bit<32> shim = packet.lookahead<bit<96>>()[31:0];
        meta.int_bytes = 12 + ((bit<16>) shim[23:16] << 2);
        bit<16> least = meta.int_bytes + (shim[7:0] == PROTO_TCP ? 16w20 : 16w8);
        bool has_int = shim[31:26] == 0b000110 && shim[23:16] >= 3 && meta.l4_bytes >= least &&
                       (shim[7:0] == PROTO_TCP || shim[7:0] == PROTO_UDP);
        transition select(has_int) {
            true: parse_int;
            default: parse_no_int;
        }
    }

    state parse_no_int {
        meta.int_bytes = 0;
        transition parse_udp_header;
    }

    state parse_int {
        packet.extract(hdr.int_udp);
        packet.extract(hdr.int_shim);
        packet.extract(hdr.int_md);
        packet.extract(hdr.int_stack, ((bit<32>) hdr.int_shim.words - 3) << 5);
        meta.proto = hdr.int_shim.proto;
        meta.ip_bytes = meta.ip_bytes - meta.int_bytes;
        meta.l4_bytes = meta.l4_bytes - meta.int_bytes;
        transition select(meta.proto) {
            PROTO_TCP: parse_tcp_behind_int;
            default: parse_udp_header;
        }
    }

    state parse_tcp_behind_int {
        bit<16> header_bytes = (bit<16>) packet.lookahead<bit<160>>()[63:60] << 2;
        transition select(header_bytes >= 20 && meta.l4_bytes >= header_bytes) {
            true: parse_tcp;
            default: parse_no_tcp_behind_int;
        }
    }

    state parse_no_tcp_behind_int {
        meta.proto = PROTO_UDP;
        meta.ip_bytes = meta.ip_bytes + meta.int_bytes;
        meta.l4_bytes = meta.l4_bytes + meta.int_bytes;
        meta.int_bytes = 0;
        meta.sport = hdr.int_udp.sport;
        meta.dport = hdr.int_udp.dport;
        meta.payload_bytes = meta.l4_bytes - 8;
        transition accept;
    }

    state parse_udp_header {
        packet.extract(hdr.udp);
        meta.sport = hdr.udp.sport;
        meta.dport = hdr.udp.dport;
        meta.payload_bytes = meta.l4_bytes - 8;
        transition accept;
    }

    state parse_ports {
        verify(meta.l4_bytes >= 4, error.BadTransportHeader);
        packet.extract(hdr.ports);
        meta.sport = hdr.ports.sport;
        meta.dport = hdr.ports.dport;
        transition accept;
    }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.report_ethernet);
        packet.emit(hdr.report_ipv4);
        packet.emit(hdr.report_udp);
        packet.emit(hdr.report);
        packet.emit(hdr.report_ports);
        packet.emit(hdr.report_queue);
        packet.emit(hdr.report_time);
        packet.emit(hdr.report_interfaces);
        packet.emit(hdr.report_drop);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.inner_vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.extensions);
        packet.emit(hdr.int_udp);
        packet.emit(hdr.int_shim);
        packet.emit(hdr.int_md);
        packet.emit(hdr.int_node_id);
        packet.emit(hdr.int_ports);
        packet.emit(hdr.int_latency);
        packet.emit(hdr.int_queue);
        packet.emit(hdr.int_ingress_time);
        packet.emit(hdr.int_egress_time);
        packet.emit(hdr.int_interfaces);
        packet.emit(hdr.int_utilization);
        packet.emit(hdr.int_buffer);
        packet.emit(hdr.int_complement);
        packet.emit(hdr.int_stack);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
        packet.emit(hdr.ports);
    }
}

#endif
