"""Routes, with and without an SRv6 tunnel. dinnet's have a protocol number of their own."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from dinnet.host.state import Change, Problem, Route

#: rtm_protocol of dinnet's routes: `ip route show proto 221`. Nobody else's in /etc/iproute2/rt_protos.
PROTOCOL: Final = 221
_RTN_UNICAST: Final = 1
_RTM_F_CLONED: Final = 0x200


@dataclass(frozen=True, slots=True)
class RouteStep:
    """What a change of a route is to the kernel."""

    action: Literal["add", "change", "delete"]
    route: Route
    index: int | None


Key = tuple[str, int, int]


def key(route: Route) -> Key:
    """What tells a route from others: one of them at most has it."""
    return str(ipaddress.ip_network(route.destination)), route.table, route.metric


def text(route: Route) -> str:
    """As ip prints it."""
    words = [route.destination]
    if route.segments:
        words.append(f"encap seg6 mode encap segs {len(route.segments)} [ {' '.join(route.segments)} ]")
    words += [f"via {route.via}"] if route.via else []
    words += [f"dev {route.device}"] if route.device else []
    words += [f"table {route.table}"] if route.table != 254 else []
    words.append(f"proto {PROTOCOL}")
    words += [f"metric {route.metric}"] if route.metric else []
    return " ".join(words)


def read(ip: Any, names: dict[int, str]) -> tuple[dict[Key, Route], dict[Key, int]]:
    """dinnet's routes, and the protocol numbers of all others."""
    ours: dict[Key, Route] = {}
    others: dict[Key, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in ip.get_routes(family=family):
            if message["type"] != _RTN_UNICAST or message["flags"] & _RTM_F_CLONED:
                continue
            destination = message.get_attr("RTA_DST") or ("0.0.0.0" if family == socket.AF_INET else "::")
            prefix = f"{destination}/{message['dst_len']}"
            table = message.get_attr("RTA_TABLE") or message["table"]
            metric = message.get_attr("RTA_PRIORITY") or 0
            name = names.get(message.get_attr("RTA_OIF") or 0)
            found = Route(prefix, message.get_attr("RTA_GATEWAY"), name, table, metric, _segments(message))
            if message["proto"] == PROTOCOL:
                ours[key(found)] = found
            else:
                others[key(found)] = message["proto"]
    return ours, others


def _segments(message: Any) -> tuple[str, ...]:
    encap = message.get_attr("RTA_ENCAP")
    found = encap.get_attr("SEG6_IPTUNNEL_SRH") if encap is not None and hasattr(encap, "get_attr") else None
    # The kernel has the last segment first (RFC 8754, section 2).
    return tuple(str(ipaddress.ip_address(segment)) for segment in reversed(found["segs"])) if found else ()


def difference(
    wanted: Iterable[Route],
    present: dict[Key, Route],
    others: dict[Key, int],
    indexes: dict[str, int],
    has_seg6: bool,
) -> tuple[list[Change], list[Problem]]:
    """Changes, new ones first, and what keeps routes from being made."""
    changes, problems = [], []
    gone = dict(present)
    for route in wanted:
        was = gone.pop(key(route), None)
        where = route.device or f"table {route.table}"
        if route.device is not None and route.device not in indexes:
            problems.append(
                Problem(where, f"there is no such interface, for {text(route)}", "make it, or name another")
            )
        elif key(route) in others:
            problems.append(
                Problem(
                    where,
                    f"somebody else has a route to {route.destination} with metric {route.metric}",
                    "give dinnet's another metric, or remove that one",
                )
            )
        elif route.segments and not has_seg6:
            problems.append(Problem(where, "the kernel has no SRv6 tunnels", "it needs CONFIG_IPV6_SEG6_LWTUNNEL"))
        elif was is None:
            changes.append(_change("add", route, indexes))
        elif _differ(route, was):
            changes.append(_change("change", route, indexes, was))
    changes += [_change("delete", route, indexes) for route in gone.values()]
    return changes, problems


def _differ(wanted: Route, present: Route) -> bool:
    """Whether the one there is another one; the kernel names the interface even where nobody did."""
    same_device = wanted.device is None or wanted.device == present.device
    via = [ipaddress.ip_address(each.via) if each.via else None for each in (wanted, present)]
    segments = [tuple(map(ipaddress.ip_address, each.segments)) for each in (wanted, present)]
    return not (same_device and via[0] == via[1] and segments[0] == segments[1])


def _change(
    action: Literal["add", "change", "delete"], route: Route, indexes: dict[str, int], was: Route | None = None
) -> Change:
    step = RouteStep(action, route, indexes.get(route.device) if route.device else None)
    before = text(was) if was else text(route) if action == "delete" else None
    return Change(action, "route", route.device or f"table {route.table}", text(route), before, step)


def apply(ip: Any, step: RouteStep) -> None:
    """Do it; changing a route is one step for the kernel, too, and no packet finds none."""
    route = step.route
    prefix = ipaddress.ip_network(route.destination)
    words: dict[str, Any] = {
        "dst": str(prefix), "table": route.table, "proto": PROTOCOL, "priority": route.metric,
        "family": socket.AF_INET if prefix.version == 4 else socket.AF_INET6,
    }  # fmt: skip
    if step.index is not None:
        words["oif"] = step.index
    if route.via:
        words["gateway"] = route.via
    if route.segments and step.action != "delete":
        # The last segment comes first (RFC 8754, section 2), and pyroute2 leaves them in the order given.
        words["encap"] = {"type": "seg6", "mode": "encap", "segs": list(reversed(route.segments))}
    ip.route({"add": "add", "change": "replace", "delete": "del"}[step.action], **words)
