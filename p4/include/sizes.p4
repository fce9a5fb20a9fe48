// How much there is of everything. The embedded switch takes these from the P4Info.
#ifndef SIZES_P4
#define SIZES_P4

#define PORTS 512             // ports are numbered 0 to 511, of which
#define CPU_PORT 510          // is the controller's: packet-ins and packet-outs
#define NO_PORT 511           // stands for "several ports or none yet" where a port is an index

#define SLICES 16
#define TRAFFIC_CLASSES 4

#define MICROFLOWS 1048576
#define SLICE_SELECTS 4096
#define ROUTES 65536          // of IPv4, and as many of IPv6
#define STATIONS 65536        // MAC addresses

#define INT_SOURCES 1024      // entries of the watch list
#define INT_PORT 4793         // UDP destination port that INT is told by (INT_TBD of the specification)
#define INT_SESSION 1         // clone session that reports leave by
#define INT_FIELDS 1          // what a copy for a report keeps of the packet's metadata
#define INT_REPORT_BYTES 256  // of a packet without INT in a report, at most

#define EXTENSIONS 8           // IPv6 extension headers that are looked behind

#define FLOW_SLOTS 65536      // flow records under way

#endif
