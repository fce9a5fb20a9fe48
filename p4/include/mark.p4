// Write (slice, tc) to DSCP. ECN is kept.
#ifndef MARK_P4
#define MARK_P4

#include "metadata.p4"

control Mark(inout headers_t hdr, inout metadata_t meta) {
    // Indexed by (slice * 4 + tc) * 4 + colour.
    counter(SLICES * TRAFFIC_CLASSES * 4, CounterType.packets_and_bytes) marked;

    action set_dscp(bit<6> dscp) {
        meta.dscp = dscp;
    }

    // For networks with a DSCP plan of their own; without an entry: slice << 2 | tc.
    table mark_to_dscp {
        key = {
            meta.slice: exact @name("slice");
            meta.tc: exact @name("tc");
        }
        actions = { set_dscp; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    apply {
        marked.count((bit<32>) (meta.slice ++ meta.tc ++ meta.colour));
        meta.dscp = meta.slice ++ meta.tc;
        mark_to_dscp.apply();
        if (hdr.ipv4.isValid()) {
            // RFC 1624, equation 3, for the first 16 bits of the header: whatever was wrong before stays wrong.
            bit<10> rest = hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.ecn;
            bit<17> sum = (bit<17>) ~hdr.ipv4.checksum + (bit<17>) ~(rest[9:2] ++ hdr.ipv4.dscp ++ rest[1:0]);
            sum = (sum & 0xffff) + (sum >> 16) + (bit<17>) (rest[9:2] ++ meta.dscp ++ rest[1:0]);
            sum = (sum & 0xffff) + (sum >> 16);
            hdr.ipv4.checksum = ~sum[15:0];
            hdr.ipv4.dscp = meta.dscp;
        } else {
            hdr.ipv6.dscp = meta.dscp;
        }
    }
}

#endif
