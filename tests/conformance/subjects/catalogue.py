"""All subjects, by the name of their file."""

from __future__ import annotations

from collections.abc import Callable

from .book import Book
from .forwarding import routes_v4, routes_v6, stations

BOOKS: dict[str, Callable[[], Book]] = {
    "forward_l2": stations,
    "forward_v4": routes_v4,
    "forward_v6": routes_v6,
}
