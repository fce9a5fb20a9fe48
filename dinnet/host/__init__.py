"""Linux hosts by netlink: slices and their queues, routes, MACsec, counters."""
