// Which slice and queue a packet belongs to.
#ifndef CLASSIFY_P4
#define CLASSIFY_P4

#include "metadata.p4"

control Classify(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_meter<bit<2>>(MeterType.bytes) microflow_meter;
    direct_counter(CounterType.packets_and_bytes) microflow_counter;
    direct_counter(CounterType.packets_and_bytes) slice_select_counter;

    action set_slice(slice_t slice, tc_t tc) {
        slice_select_counter.count();
        meta.slice = slice;
        meta.tc = tc;
    }

    action set_mark(slice_t slice, tc_t tc, bit<32> microflow_id) {
        microflow_counter.count();
        microflow_meter.read(meta.microflow_colour);
        meta.slice = slice;
        meta.tc = tc;
        meta.microflow_id = microflow_id;
    }

    // From a network that marks by itself: what its DSCP means here, where that differs from this switch's own coding.
    action read_dscp(slice_t slice, tc_t tc) {
        meta.slice = slice;
        meta.tc = tc;
    }

    table dscp_to_mark {
        key = { meta.dscp: exact @name("dscp"); }
        actions = { read_dscp; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    table slice_select {
        key = {
            std.ingress_port: ternary @name("ingress_port");
            meta.src: ternary @name("src");
            meta.dst: ternary @name("dst");
            meta.proto: ternary @name("proto");
            meta.sport: ternary @name("sport");
            meta.dport: ternary @name("dport");
            meta.vlan: ternary @name("vlan");
        }
        actions = { set_slice; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = slice_select_counter;
        size = SLICE_SELECTS;
    }

    table microflow {
        key = {
            meta.src: exact @name("src");
            meta.dst: exact @name("dst");
            meta.proto: exact @name("proto");
            meta.sport: exact @name("sport");
            meta.dport: exact @name("dport");
            meta.vlan: exact @name("vlan");  // tenants behind VLANs may use the same addresses
            meta.key_label: exact @name("flow_label");
        }
        actions = { set_mark; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = microflow_counter;
        meters = microflow_meter;
        support_timeout = true;
        size = MICROFLOWS;
    }

    apply {
        if (meta.trusted == 1) {
            meta.slice = meta.dscp[5:2];
            meta.tc = meta.dscp[1:0];
            dscp_to_mark.apply();
        }
        slice_select.apply();
        if (meta.is_later_fragment == 0) {
            microflow.apply();
        }
    }
}

#endif
