"""Packets to flow records, flow records to features."""
