"""Packets to flow records, flow records to features."""

from dinnet.flows.reading import capture_records, read_records
from dinnet.flows.record import RECORD_DTYPE, End, Records
from dinnet.flows.table import FlowOptions, FlowTable

__all__ = ["RECORD_DTYPE", "End", "FlowOptions", "FlowTable", "Records", "capture_records", "read_records"]
