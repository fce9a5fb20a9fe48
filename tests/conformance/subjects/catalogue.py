"""All subjects, by the name of their file."""

from __future__ import annotations

from collections.abc import Callable

from .book import Book
from .forwarding import routes_v4, routes_v6, stations
from .marks import dscp, microflows, slices
from .meters import meters
from .records import controller, records
from .stacks import malformed, passing
from .telemetry import telemetry

BOOKS: dict[str, Callable[[], Book]] = {
    "forward_l2": stations,
    "forward_v4": routes_v4,
    "forward_v6": routes_v6,
    "slice_select": slices,
    "microflow": microflows,
    "dscp": dscp,
    "header_stacks": passing,
    "malformed": malformed,
    "meters": meters,
    "flow_records": records,
    "controller": controller,
    "telemetry": telemetry,
}
