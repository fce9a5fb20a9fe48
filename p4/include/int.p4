// In-band network telemetry: INT-MD and INT-XD (INT 2.1), reports (Telemetry Report 2.0).
//
// What becomes of a packet is decided at ingress, where its length and its way are known; egress adds what is known
// only there, and turns copies into reports. A report shows the packet as it came in.
#ifndef INT_P4
#define INT_P4

#include "metadata.p4"

// Cells of the counter `int_events`.
enum bit<8> int_event_t {
    BEGUN = 0,       // source: header put in
    ADDED = 1,       // transit: metadata put in
    ENDED = 2,       // sink: everything taken out
    REPORTED = 3,
    UNFIT = 4,       // watched, but cannot carry INT: fragment, extension header, protocol
    NO_ROOM = 5,     // watched, but the header would exceed the MTU
    MTU = 6,         // M bit set
    HOPS = 7,        // E bit set
    FOREIGN = 8,     // transit: instructions that are not followed
    DISCARDED = 9    // sink: D bit
    // 10 is the embedded switch's own: a report was lost in the switch
}

#define INT_HEADERS 24                 // UDP, shim, INT-MD header
#define INT_KNOWN 16w0xff81            // instructions that are not reserved
#define INT_TOLD 16w0x5a00             // what a report tells of the reporting node itself: ports, queue, ingress time
#define INT_PORTS_BIT 16w0x4000
#define INT_QUEUE_BIT 16w0x1000
#define REPORT_DROPPED 8w0x80
#define REPORT_TRACKED 8w0x20

// Words of an instruction bitmap: bits 4 to 6 stand for two each.
#define INT_WORDS(bits) (                                                                              \
    (bit<8>) bits[15:15] + (bit<8>) bits[14:14] + (bit<8>) bits[13:13] + (bit<8>) bits[12:12] +          \
    ((bit<8>) bits[11:11] << 1) + ((bit<8>) bits[10:10] << 1) + ((bit<8>) bits[9:9] << 1) +              \
    (bit<8>) bits[8:8] + (bit<8>) bits[7:7] + (bit<8>) bits[0:0])

#define HALVES(word) ((bit<32>) word[31:16] + (bit<32>) word[15:0])
#define LONG_HALVES(word) (HALVES(word[63:32]) + HALVES(word[31:0]))

control IntIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(16, CounterType.packets_and_bytes) int_events;
    direct_counter(CounterType.packets_and_bytes) int_source_counter;
    bit<1> is_watched = 0;
    bit<1> wants_md = 0;
    bit<16> asked = 0;
    bit<8> most_hops = 0;
    bit<1> at_sink = 0;
    bit<16> link_mtu = 0;
    bit<32> own_id = 0;
    port_t port = NO_PORT;

    @hidden action count_event(int_event_t event) {
        int_events.count((bit<32>) (bit<8>) event);
    }

    action no_int() {
        int_source_counter.count();
    }

    // Put INT into the packet, for `hops` nodes at most to add their metadata.
    action int_md(bit<16> instructions, bit<8> hops) {
        int_source_counter.count();
        is_watched = 1;
        wants_md = 1;
        asked = instructions;
        most_hops = hops;
    }

    // Report on the packet without changing it.
    action int_xd(bit<16> instructions) {
        int_source_counter.count();
        is_watched = 1;
        asked = instructions;
    }

    // The watch list.
    table int_source {
        key = {
            std.ingress_port: ternary @name("ingress_port");
            meta.src: ternary @name("src");
            meta.dst: ternary @name("dst");
            meta.proto: ternary @name("proto");
            meta.sport: ternary @name("sport");
            meta.dport: ternary @name("dport");
            meta.vlan: ternary @name("vlan");
        }
        actions = { int_md; int_xd; no_int; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = int_source_counter;
        size = INT_SOURCES;
    }

    action set_node(bit<32> node_id, bit<1> is_sink, bit<16> mtu) {
        own_id = node_id;
        at_sink = is_sink;
        link_mtu = mtu;
    }

    // What this switch is to packets that leave by a port; to those that are dropped or flooded, by the one they came in.
    table int_node {
        key = { port: exact @name("port"); }
        actions = { set_node; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    // Total length and protocol of IP.
    @hidden action set_ip(bit<16> total, bit<8> proto) {
        // RFC 1624, equation 3; whatever was wrong before stays wrong.
        bit<32> sum = (bit<32>) ~hdr.ipv4.checksum + (bit<32>) ~hdr.ipv4.total_length + (bit<32>) total +
                      (bit<32>) ~(8w0 ++ hdr.ipv4.protocol) + (bit<32>) proto;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        hdr.ipv4.checksum = ~sum[15:0];
        hdr.ipv4.total_length = total;
        hdr.ipv4.protocol = proto;
        hdr.ipv6.payload_length = total - 40;
        hdr.ipv6.next_header = proto;
    }

    @hidden action report(bit<8> flags, drop_t reason, bit<16> bits, bit<16> egress_port) {
        meta.report_flags = flags;
        meta.report_reason = reason;
        meta.report_bits = bits;
        meta.report_port = egress_port;
        clone_preserving_field_list(CloneType.I2E, INT_SESSION, INT_FIELDS);
        count_event(int_event_t.REPORTED);
    }

    @hidden action take_out() {
        set_ip(meta.ip_bytes, meta.proto);
        hdr.int_udp.setInvalid();
        hdr.int_shim.setInvalid();
        hdr.int_md.setInvalid();
        hdr.int_stack.setInvalid();
        count_event(int_event_t.ENDED);
    }

    @hidden action put_in(bit<8> words) {
        hdr.int_udp.setValid();
        hdr.int_shim.setValid();
        hdr.int_md.setValid();
        bit<128> both = meta.src ^ meta.dst;
        bit<64> half = both[127:64] ^ both[63:0];
        bit<32> word = half[63:32] ^ half[31:0] ^ (meta.sport ++ meta.dport) ^ (24w0 ++ meta.proto);
        word = word * 0x9e3779b1;
        hdr.int_udp.sport = 2w3 ++ word[31:18];
        hdr.int_udp.dport = INT_PORT;
        hdr.int_udp.length = meta.l4_bytes + INT_HEADERS + ((bit<16>) words << 2);
        hdr.int_udp.checksum = 0;
        hdr.int_shim.type = 1;
        hdr.int_shim.npt = 2;
        hdr.int_shim.reserved = 0;
        hdr.int_shim.words = 3 + words;
        hdr.int_shim.reserved2 = 0;
        hdr.int_shim.proto = meta.proto;
        hdr.int_md.version = 2;
        hdr.int_md.discard = 0;
        hdr.int_md.hops_exceeded = 0;
        hdr.int_md.mtu_exceeded = 0;
        hdr.int_md.reserved = 0;
        hdr.int_md.instructions = asked;
        hdr.int_md.domain = 0;
        hdr.int_md.domain_instructions = 0;
        hdr.int_md.domain_flags = 0;
        set_ip(meta.ip_bytes + INT_HEADERS + ((bit<16>) words << 2), PROTO_UDP);
        count_event(int_event_t.BEGUN);
    }

    apply {
        bool is_dropped = meta.dropped != drop_t.KEPT;
        bool is_flooded = std.mcast_grp != 0 && !is_dropped;
        bool is_controllers = std.egress_spec == CPU_PORT && !is_dropped && !is_flooded;
        if (!is_controllers && std.ingress_port != CPU_PORT) {
            if (meta.int_bytes == 0 && !is_flooded) {
                int_source.apply();
            }
            if (meta.int_bytes != 0 || is_watched == 1) {
                port = std.egress_spec;
                if (is_dropped || is_flooded) {
                    port = std.ingress_port;
                }
                // Of the packet in a report: all headers, up to TCP's without options.
                meta.report_kept = meta.ip_bytes - meta.l4_bytes + meta.int_bytes;
                if (meta.is_later_fragment == 0) {
                    if (meta.proto == PROTO_TCP) {
                        meta.report_kept = meta.report_kept + 20;
                    } else if (meta.proto == PROTO_UDP) {
                        meta.report_kept = meta.report_kept + 8;
                    }
                }
                if (meta.int_bytes == 0 && meta.report_kept > INT_REPORT_BYTES) {
                    meta.report_kept = INT_REPORT_BYTES;
                }
                meta.report_ingress = std.ingress_port;
                if (int_node.apply().miss) {
                    if (is_watched == 1 && !is_dropped) {
                        count_event(int_event_t.UNFIT);
                    }
                } else if (is_dropped) {
                    if (meta.int_bytes != 0) {
                        asked = INT_PORTS_BIT;
                    }
                    report(REPORT_DROPPED | REPORT_TRACKED, meta.dropped,
                           (asked & INT_TOLD & ~INT_QUEUE_BIT) | 1, 0xffff);
                } else if (is_flooded) {
                    take_out();
                } else if (meta.int_bytes != 0) {
                    bit<16> bits = hdr.int_md.instructions;
                    bit<8> words = INT_WORDS(bits);
                    bit<16> bytes = (bit<16>) words << 2;
                    bit<16> total = meta.ip_bytes + meta.int_bytes;
                    bool is_followed = hdr.int_md.version == 2 && bits & ~INT_KNOWN == 0 && hdr.int_md.domain == 0 &&
                                       hdr.int_md.domain_instructions == 0 && (bit<8>) hdr.int_md.hop_words == words;
                    if (at_sink == 1) {
                        if (is_followed) {
                            report(REPORT_TRACKED, drop_t.KEPT, bits & INT_TOLD, 7w0 ++ port);
                        } else {
                            report(REPORT_TRACKED, drop_t.KEPT, 0, 7w0 ++ port);
                        }
                        if (hdr.int_md.version == 2 && hdr.int_md.discard == 1) {
                            count_event(int_event_t.DISCARDED);
                            mark_to_drop(std);
                        }
                        take_out();
                    } else {
                        // The sum that a UDP checksum is corrected with, where there is one (RFC 1624, equation 3).
                        meta.int_sum = (bit<32>) ~hdr.int_udp.length + (bit<32>) ~hdr.int_udp.length +
                            (bit<32>) ~(8w0 ++ hdr.int_shim.words) + (bit<32>) ~(8w0 ++ hdr.int_md.remaining) +
                            (bit<32>) ~((14w0 ++ hdr.int_md.hops_exceeded ++ hdr.int_md.mtu_exceeded) << 9);
                        meta.int_changed = 1;
                        if (hdr.int_md.version == 2 && hdr.int_md.remaining == 0) {
                            hdr.int_md.hops_exceeded = 1;
                            count_event(int_event_t.HOPS);
                        } else if (!is_followed || words == 0 || (bit<16>) hdr.int_shim.words + (bit<16>) words > 255) {
                            meta.int_changed = 0;
                            count_event(int_event_t.FOREIGN);
                        } else if ((bit<17>) total + (bit<17>) bytes > (bit<17>) link_mtu) {
                            hdr.int_md.mtu_exceeded = 1;
                            count_event(int_event_t.MTU);
                        } else {
                            meta.int_told = bits;
                            hdr.int_udp.length = hdr.int_udp.length + bytes;
                            hdr.int_shim.words = hdr.int_shim.words + words;
                            hdr.int_md.remaining = hdr.int_md.remaining - 1;
                            set_ip(total + bytes, PROTO_UDP);
                            count_event(int_event_t.ADDED);
                        }
                        meta.int_sum = meta.int_sum + (bit<32>) hdr.int_udp.length + (bit<32>) hdr.int_udp.length +
                            (bit<32>) hdr.int_shim.words + (bit<32>) hdr.int_md.remaining +
                            (bit<32>) ((14w0 ++ hdr.int_md.hops_exceeded ++ hdr.int_md.mtu_exceeded) << 9);
                    }
                } else if (wants_md == 1 && at_sink == 0) {
                    asked = asked & INT_KNOWN;
                    bit<8> words = INT_WORDS(asked);
                    bit<8> added = words;
                    if (most_hops == 0) {
                        added = 0;
                    }
                    bit<17> least = (bit<17>) meta.ip_bytes + INT_HEADERS;
                    if (meta.is_plain == 0 || (meta.proto != PROTO_TCP && meta.proto != PROTO_UDP)) {
                        count_event(int_event_t.UNFIT);
                    } else if (least > (bit<17>) link_mtu) {
                        count_event(int_event_t.NO_ROOM);
                    } else {
                        bit<1> is_long = 0;
                        if (least + ((bit<17>) added << 2) > (bit<17>) link_mtu) {
                            added = 0;
                            is_long = 1;
                            count_event(int_event_t.MTU);
                        }
                        put_in(added);
                        hdr.int_md.mtu_exceeded = is_long;
                        hdr.int_md.hop_words = words[4:0];
                        hdr.int_md.remaining = most_hops;
                        if (added != 0) {
                            meta.int_told = asked;
                            hdr.int_md.remaining = most_hops - 1;
                        }
                    }
                } else {
                    report(REPORT_TRACKED, drop_t.KEPT, asked & INT_TOLD, 7w0 ++ port);
                }
                meta.report_node = own_id;
                meta.report_queue = 2w0 ++ meta.slice ++ meta.tc;
                meta.report_time = std.ingress_global_timestamp;
            }
        }
    }
}

// Own metadata on top of the stack.
control IntTell(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (meta.int_told & 0x8000 != 0) {
            hdr.int_node_id.setValid();
            hdr.int_node_id.word = meta.report_node;
            meta.int_sum = meta.int_sum + HALVES(hdr.int_node_id.word);
        }
        if (meta.int_told & 0x4000 != 0) {
            hdr.int_ports.setValid();
            hdr.int_ports.word = 7w0 ++ std.ingress_port ++ 7w0 ++ std.egress_port;
            meta.int_sum = meta.int_sum + HALVES(hdr.int_ports.word);
        }
        if (meta.int_told & 0x2000 != 0) {
            bit<48> us = std.egress_global_timestamp - std.ingress_global_timestamp;
            hdr.int_latency.setValid();
            hdr.int_latency.word = us > 4294967 ? 32w0xfffffffe : us[31:0] * 1000;
            meta.int_sum = meta.int_sum + HALVES(hdr.int_latency.word);
        }
        if (meta.int_told & 0x1000 != 0) {
            hdr.int_queue.setValid();
            hdr.int_queue.word = meta.report_queue ++ 5w0 ++ std.deq_qdepth;
            meta.int_sum = meta.int_sum + HALVES(hdr.int_queue.word);
        }
        if (meta.int_told & 0x0800 != 0) {
            hdr.int_ingress_time.setValid();
            hdr.int_ingress_time.word = (bit<64>) std.ingress_global_timestamp * 1000;
            meta.int_sum = meta.int_sum + LONG_HALVES(hdr.int_ingress_time.word);
        }
        if (meta.int_told & 0x0400 != 0) {
            hdr.int_egress_time.setValid();
            hdr.int_egress_time.word = (bit<64>) std.egress_global_timestamp * 1000;
            meta.int_sum = meta.int_sum + LONG_HALVES(hdr.int_egress_time.word);
        }
        if (meta.int_told & 0x0200 != 0) {
            hdr.int_interfaces.setValid();
            hdr.int_interfaces.word = 23w0 ++ std.ingress_port ++ 23w0 ++ std.egress_port;
            meta.int_sum = meta.int_sum + LONG_HALVES(hdr.int_interfaces.word);
        }
        if (meta.int_told & 0x0100 != 0) {
            hdr.int_utilization.setValid();
            hdr.int_utilization.word = 0xffffffff;
        }
        if (meta.int_told & 0x0080 != 0) {
            hdr.int_buffer.setValid();
            hdr.int_buffer.word = 0xffffffff;
        }
        if (meta.int_told & 0x0001 != 0) {
            hdr.int_complement.setValid();
            hdr.int_complement.word = 0xffffffff;
        }
        // Words of all ones change no sum.
        if (meta.int_changed == 1 && hdr.int_udp.checksum != 0) {
            bit<32> sum = meta.int_sum + (bit<32>) ~hdr.int_udp.checksum;
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            hdr.int_udp.checksum = ~sum[15:0];
            if (hdr.int_udp.checksum == 0) {
                hdr.int_udp.checksum = 0xffff;
            }
        }
    }
}

// A copy of a packet, as it came in, becomes a report to the collector.
control IntReport(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<32>>(1) int_sequence;
    bit<1> is_set = 0;
    bit<16> metadata_words = 0;

    action set_collector(mac_t src_mac, mac_t dst_mac, bit<32> src, bit<32> dst, bit<16> sport, bit<16> dport) {
        is_set = 1;
        hdr.report_ethernet.setValid();
        hdr.report_ethernet.src = src_mac;
        hdr.report_ethernet.dst = dst_mac;
        hdr.report_ethernet.ether_type = ETHERTYPE_IPV4;
        hdr.report_ipv4.setValid();
        hdr.report_ipv4.src = src;
        hdr.report_ipv4.dst = dst;
        hdr.report_udp.setValid();
        hdr.report_udp.sport = sport;
        hdr.report_udp.dport = dport;
    }

    // Where reports go to, by the port of clone session INT_SESSION. Without a collector there are none.
    table int_collector {
        actions = { set_collector; @defaultonly NoAction; }
        default_action = NoAction();
    }

    apply {
        int_collector.apply();
        if (is_set == 0) {
            mark_to_drop(std);
        } else {
            bit<32> sequence;
            @atomic {
                int_sequence.read(sequence, 0);
                int_sequence.write(0, sequence + 1);
            }
            hdr.report.setValid();
            hdr.report.version = 2;
            hdr.report.hardware_id = 0;
            hdr.report.sequence = sequence[21:0];
            hdr.report.node_id = meta.report_node;
            hdr.report.report_type = 1;
            hdr.report.inner_type = 5;
            if (hdr.ipv4.isValid()) {
                hdr.report.inner_type = 4;
            }
            hdr.report.flags = meta.report_flags;
            hdr.report.present = meta.report_bits;
            hdr.report.domain = 0;
            hdr.report.domain_bits = 0;
            hdr.report.domain_status = 0;
            if (meta.report_bits & 0x4000 != 0) {
                hdr.report_ports.setValid();
                hdr.report_ports.word = 7w0 ++ meta.report_ingress ++ meta.report_port;
                metadata_words = metadata_words + 1;
            }
            if (meta.report_bits & 0x1000 != 0) {
                hdr.report_queue.setValid();
                hdr.report_queue.word = meta.report_queue ++ 24w0xffffff;
                metadata_words = metadata_words + 1;
            }
            if (meta.report_bits & 0x0800 != 0) {
                hdr.report_time.setValid();
                hdr.report_time.word = (bit<64>) meta.report_time * 1000;
                metadata_words = metadata_words + 2;
            }
            if (meta.report_bits & 0x0200 != 0) {
                hdr.report_interfaces.setValid();
                hdr.report_interfaces.word = 23w0 ++ meta.report_ingress ++ 16w0 ++ meta.report_port;
                if (meta.report_port == 0xffff) {
                    hdr.report_interfaces.word[31:0] = 0xffffffff;
                }
                metadata_words = metadata_words + 2;
            }
            if (meta.report_bits & 0x0001 != 0) {
                hdr.report_drop.setValid();
                hdr.report_drop.word = meta.report_queue ++ (bit<8>) meta.report_reason ++ 16w0;
                metadata_words = metadata_words + 1;
            }
            hdr.report.metadata_words = metadata_words[7:0];

            bit<16> inner = 2 + metadata_words + (meta.report_kept >> 2);
            hdr.report.words = inner > 255 ? 8w255 : inner[7:0];
            bit<16> total = 20 + 8 + 12 + (inner << 2);
            hdr.report_udp.length = total - 20;
            hdr.report_udp.checksum = 0;
            hdr.report_ipv4.version = 4;
            hdr.report_ipv4.ihl = 5;
            hdr.report_ipv4.dscp = 0;
            hdr.report_ipv4.ecn = 0;
            hdr.report_ipv4.total_length = total;
            hdr.report_ipv4.identification = 0;
            hdr.report_ipv4.reserved = 0;
            hdr.report_ipv4.dont_fragment = 1;
            hdr.report_ipv4.more_fragments = 0;
            hdr.report_ipv4.fragment_offset = 0;
            hdr.report_ipv4.ttl = 64;
            hdr.report_ipv4.protocol = PROTO_UDP;
            bit<32> sum = 0x4500 + (bit<32>) total + 0x4000 + 0x4011 + HALVES(hdr.report_ipv4.src) +
                          HALVES(hdr.report_ipv4.dst);
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            hdr.report_ipv4.checksum = ~sum[15:0];
            hdr.ethernet.setInvalid();
            hdr.vlan.setInvalid();
            hdr.inner_vlan.setInvalid();
            truncate(14 + (bit<32>) total);
        }
    }
}

#endif
