// Token buckets: one for each micro-flow, one for each slice of each link; and what becomes of what is above them.
#ifndef METERS_P4
#define METERS_P4

#include "metadata.p4"

control Meters(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    // Indexed by egress port * SLICES + slice.
    meter(PORTS * SLICES, MeterType.bytes) slice_meter;
    // Indexed by (slice * 4 + bucket_t) * 4 + what was done: 0 degraded, 1 rerouted, 2 dropped.
    counter(SLICES * 16, CounterType.packets_and_bytes) exceeded;

    action degrade() {
        meta.tc = 0;
        exceeded.count((bit<32>) (meta.slice ++ (bit<2>) meta.above ++ 2w0));
    }

    // To the alternate path; Ethernet addresses of zero leave the packet's as they are.
    action reroute(port_t port, mac_t src, mac_t dst) {
        std.egress_spec = port;
        std.mcast_grp = 0;
        if (src != 0) {
            hdr.ethernet.src = src;
        }
        if (dst != 0) {
            hdr.ethernet.dst = dst;
        }
        exceeded.count((bit<32>) (meta.slice ++ (bit<2>) meta.above ++ 2w1));
    }

    action drop() {
        meta.dropped = meta.above == bucket_t.SLICE ? drop_t.SLICE : drop_t.MICROFLOW;
        exceeded.count((bit<32>) (meta.slice ++ (bit<2>) meta.above ++ 2w2));
    }

    table exceed {
        key = {
            meta.slice: exact @name("slice");
            meta.above: exact @name("bucket");
        }
        actions = { degrade; reroute; drop; }
        default_action = degrade();
        size = 64;
    }

    apply {
        if (meta.microflow_colour == RED) {
            meta.above = bucket_t.MICROFLOW;
        } else {
            // What a micro-flow's own bucket refuses must not use up the slice's tokens.
            slice_meter.execute_meter((bit<32>) (std.egress_spec ++ meta.slice), meta.slice_colour);
            if (meta.slice_colour == RED) {
                meta.above = bucket_t.SLICE;
            }
        }
        meta.colour = meta.microflow_colour > meta.slice_colour ? meta.microflow_colour : meta.slice_colour;
        if (meta.above != bucket_t.NONE) {
            exceed.apply();
        }
    }
}

#endif
