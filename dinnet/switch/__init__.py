"""The embedded switch: the pipeline of `p4/dinnet.p4` in eBPF on Linux, and a P4Runtime server in front of it."""
