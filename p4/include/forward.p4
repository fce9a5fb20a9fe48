// Where a packet goes: a route where its address has one, else the station that its Ethernet address names.
#ifndef FORWARD_P4
#define FORWARD_P4

#include "metadata.p4"

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    bit<1> found = 0;

    action drop() {
        meta.dropped = drop_t.FORWARD;
        found = 1;
    }

    action to_controller() {
        std.egress_spec = CPU_PORT;
        found = 1;
    }

    action route(port_t port, mac_t src, mac_t dst) {
        std.egress_spec = port;
        hdr.ethernet.src = src;
        hdr.ethernet.dst = dst;
        meta.routed = 1;
        found = 1;
    }

    action to_port(port_t port) {
        std.egress_spec = port;
        found = 1;
    }

    // To every port of a multicast group but the one it came from.
    action flood(bit<16> group) {
        std.mcast_grp = group;
        std.egress_spec = NO_PORT;
        found = 1;
    }

    table forward_v4 {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { route; drop; to_controller; @defaultonly NoAction; }
        const default_action = NoAction();
        size = ROUTES;
    }

    table forward_v6 {
        key = { hdr.ipv6.dst: lpm @name("dst"); }
        actions = { route; drop; to_controller; @defaultonly NoAction; }
        const default_action = NoAction();
        size = ROUTES;
    }

    table forward_l2 {
        key = {
            meta.vlan: exact @name("vlan");
            hdr.ethernet.dst: exact @name("dst");
        }
        actions = { to_port; flood; drop; to_controller; @defaultonly NoAction; }
        default_action = NoAction();  // an unknown station; an operator may have such packets flooded
        size = STATIONS;
    }

    apply {
        if (hdr.ipv4.isValid()) {
            forward_v4.apply();
        } else if (hdr.ipv6.isValid()) {
            forward_v6.apply();
        }
        if (found == 0) {
            forward_l2.apply();
        }
        if (found == 0) {
            meta.dropped = drop_t.NO_ROUTE;
        } else if (meta.routed == 1) {
            if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
                // RFC 1624, equation 3, for the 16 bits that hold the TTL.
                bit<17> sum = (bit<17>) ~hdr.ipv4.checksum + (bit<17>) ~(hdr.ipv4.ttl ++ hdr.ipv4.protocol);
                hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
                sum = (sum & 0xffff) + (sum >> 16) + (bit<17>) (hdr.ipv4.ttl ++ hdr.ipv4.protocol);
                sum = (sum & 0xffff) + (sum >> 16);
                hdr.ipv4.checksum = ~sum[15:0];
            } else if (hdr.ipv6.isValid() && hdr.ipv6.hop_limit > 1) {
                hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
            } else {
                meta.dropped = drop_t.TTL;
            }
        }
    }
}

#endif
