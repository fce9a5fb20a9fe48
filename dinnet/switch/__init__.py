"""The embedded switch: the pipeline of `p4/dinnet.p4` in eBPF, on the interfaces of any Linux machine."""
