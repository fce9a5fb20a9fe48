// The dinnet pipeline: slices and queues for the traffic of LLM inference.
//
//   parse -> forward -> slice_select -> microflow -> meters (exceed) -> DSCP -> egress
//
// Every IP packet is counted into its flow's record on the way.
#include <core.p4>
#include <v1model.p4>

#include "include/sizes.p4"
#include "include/headers.p4"
#include "include/metadata.p4"
#include "include/parser.p4"
#include "include/forward.p4"
#include "include/classify.p4"
#include "include/meters.p4"
#include "include/mark.p4"
#include "include/records.p4"
#include "include/int.p4"

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    apply {}  // a wrong IPv4 checksum stays wrong all the way: whoever receives the packet sees that it was damaged
}

control DinnetIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    Forward() forward;
    Classify() classify;
    Meters() meters;
    Mark() mark;
    FlowRecords() flow_records;
    IntIngress() int_ingress;

    // Indexed by drop_t and by parsed_t.
    counter(8, CounterType.packets_and_bytes) drops;
    counter(8, CounterType.packets_and_bytes) parsed;

    // trusted: the DSCP of packets from this port counts where no entry says what they are; otherwise it is overwritten.
    // flow_labels: senders set an IPv6 flow label per conversation, so that it is part of what makes a micro-flow.
    action configure_port(bit<1> trusted, bit<1> flow_labels) {
        meta.trusted = trusted;
        meta.split_labels = flow_labels;
    }

    table ingress_port {
        key = { std.ingress_port: exact @name("port"); }
        actions = { configure_port; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    action count_parsed(parsed_t kind) {
        parsed.count((bit<32>) (bit<8>) kind);
    }

    apply {
        bool is_malformed = std.parser_error != error.NoError && std.parser_error != error.StackOutOfBounds;
        if (is_malformed) {
            count_parsed(parsed_t.MALFORMED);
            meta.dropped = drop_t.MALFORMED;
        } else if (hdr.packet_out.isValid() && hdr.packet_out.egress_port != NO_PORT) {
            // The controller's own packets leave as they are.
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            hdr.packet_out.setInvalid();
            ingress_port.apply();
            meta.key_label = meta.split_labels == 1 ? meta.flow_label : 0;
            if (meta.is_ip == 0) {
                count_parsed(parsed_t.NOT_IP);
            } else if (meta.is_later_fragment == 1) {
                count_parsed(parsed_t.FRAGMENT);
            } else {
                if (hdr.ipv4.isValid()) {
                    count_parsed(parsed_t.IPV4);
                } else {
                    count_parsed(parsed_t.IPV6);
                }
                flow_records.apply(hdr, meta, std);
            }
            forward.apply(hdr, meta, std);
            if (meta.is_ip == 1 && meta.dropped == drop_t.KEPT) {
                classify.apply(hdr, meta, std);
                meters.apply(hdr, meta, std);
                if (meta.dropped == drop_t.KEPT) {
                    mark.apply(hdr, meta);
                }
            }
            if (meta.is_ip == 1) {
                int_ingress.apply(hdr, meta, std);
            }
        }
        if (meta.dropped != drop_t.KEPT) {
            drops.count((bit<32>) (bit<8>) meta.dropped);
            std.mcast_grp = 0;
            mark_to_drop(std);
        }
    }
}

const bit<32> INSTANCE_INGRESS_CLONE = 1;  // as BMv2 numbers the ways that a packet comes to egress

control DinnetEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    IntTell() int_tell;
    IntReport() int_report;

    apply {
        if (std.instance_type == INSTANCE_INGRESS_CLONE) {
            int_report.apply(hdr, meta, std);
        } else if (std.mcast_grp != 0 && std.egress_port == std.ingress_port) {
            mark_to_drop(std);  // a flooded packet does not go back to where it came from
        } else if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.pad = 0;
        } else if (meta.int_told != 0 || meta.int_changed == 1) {
            int_tell.apply(hdr, meta, std);
        }
    }
}

control ComputeNothing(inout headers_t hdr, inout metadata_t meta) {
    apply {}  // changed where the bytes are changed: see Mark and Forward
}

V1Switch(PacketParser(), VerifyNothing(), DinnetIngress(), DinnetEgress(), ComputeNothing(), PacketDeparser()) main;
