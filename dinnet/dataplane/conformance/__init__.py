"""Golden vectors: packets and table states in, packets, digests and counters out, the same on every switch."""
