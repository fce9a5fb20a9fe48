"""Whether a desired state is possible; each error says where it is not."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable

from dinnet.errors import DinnetError
from dinnet.host.state import PRIORITIES, QUEUES, SLICES, HostState, Link, Queue, Route, Slice

_LARGEST_RATE_BPS = 10**13
_LARGEST_OVERHEAD = 65_535


def check_state(state: HostState) -> None:
    """Raise DinnetError where no host could have this state."""
    _unique((link.device for link in state.links), "{} has slices twice")
    for link in state.links:
        check_link(link)
    keys = [(_prefix(route), route.table, route.metric) for route in state.routes]
    _unique(keys, "the route to {0[0]} (table {0[1]}, metric {0[2]}) is there twice: give them different metrics")
    for route in state.routes:
        check_route(route)


def check_link(link: Link) -> None:
    """Raise DinnetError where the slices do not fit the link, or queues their slice."""
    where = link.device
    if not where or len(where) > 15 or "/" in where or any(c.isspace() for c in where):
        raise DinnetError(f"{where!r} is no name of an interface")
    if not 0 < link.rate_bps <= _LARGEST_RATE_BPS:
        raise DinnetError(f"{where}: a rate of {link.rate_bps} bit/s is impossible")
    if not 0 <= link.overhead_bytes <= _LARGEST_OVERHEAD:
        raise DinnetError(f"{where}: an overhead of {link.overhead_bytes} bytes is impossible")
    if not link.slices:
        raise DinnetError(f"{where}: a link needs at least one slice")
    _unique((each.number for each in link.slices), where + ": slice {} is there twice")
    for each in link.slices:
        _check_slice(link, each)
    total = sum(each.guarantee_bps for each in link.slices)
    if total > link.rate_bps:
        raise DinnetError(
            f"{where}: the slices' guarantees are {total} bit/s together, the link has {link.rate_bps} bit/s"
        )
    queues = {(each.number, queue.tc) for each in link.slices for queue in each.queues}
    if (link.default_slice, link.default_tc) not in queues:
        raise DinnetError(
            f"{where}: the default queue (slice {link.default_slice}, tc {link.default_tc}) is none of the link's"
        )
    _unique((dscp for dscp, _, _ in link.dscp), where + ": DSCP {} is there twice")
    for dscp, number, tc in link.dscp:
        if not 0 <= dscp < 64:
            raise DinnetError(f"{where}: DSCP {dscp}: DSCPs go from 0 to 63")
        if (number, tc) not in queues:
            raise DinnetError(f"{where}: DSCP {dscp} leads to slice {number}, tc {tc}, which is no queue of the link")


def _check_slice(link: Link, each: Slice) -> None:
    where = f"{link.device}: slice {each.number} ({each.name})"
    if not 0 <= each.number < SLICES:
        raise DinnetError(f"{where}: slices go from 0 to {SLICES - 1}")
    _check_rates(where, each, "the link's rate", link.rate_bps)
    if not each.queues:
        raise DinnetError(f"{where}: a slice needs at least one queue")
    _unique((queue.tc for queue in each.queues), where + ": tc {} is there twice")
    for queue in each.queues:
        place = f"{where}: tc {queue.tc}"
        if not 0 <= queue.tc < QUEUES:
            raise DinnetError(f"{place}: traffic classes go from 0 to {QUEUES - 1}")
        if not 0 <= queue.priority < PRIORITIES:
            raise DinnetError(f"{place}: priority {queue.priority}: priorities go from 0 to {PRIORITIES - 1}")
        if not (math.isfinite(queue.target_delay_ms) and 0 < queue.target_delay_ms <= 10_000):
            raise DinnetError(f"{place}: a target delay of {queue.target_delay_ms} ms is impossible")
        _check_rates(place, queue, "the slice's ceiling", each.ceiling_bps)
    total = sum(queue.guarantee_bps for queue in each.queues)
    if total > each.guarantee_bps:
        raise DinnetError(
            f"{where}: the queues' guarantees are {total} bit/s together, the slice's is {each.guarantee_bps} bit/s"
        )


def _check_rates(where: str, each: Slice | Queue, above: str, limit: int) -> None:
    if each.guarantee_bps < 0:
        raise DinnetError(f"{where}: a guarantee of {each.guarantee_bps} bit/s is impossible")
    if each.ceiling_bps <= 0:
        raise DinnetError(f"{where}: a ceiling of {each.ceiling_bps} bit/s lets nothing through")
    if each.guarantee_bps > each.ceiling_bps:
        raise DinnetError(
            f"{where}: the guarantee ({each.guarantee_bps} bit/s) is above the ceiling ({each.ceiling_bps} bit/s)"
        )
    if each.ceiling_bps > limit:
        raise DinnetError(f"{where}: the ceiling ({each.ceiling_bps} bit/s) is above {above} ({limit} bit/s)")


def check_route(route: Route) -> None:
    """Raise DinnetError where a route could not be."""
    where = f"route to {route.destination}"
    prefix = ipaddress.ip_network(_prefix(route))
    if route.via is None and route.device is None:
        raise DinnetError(f"{where}: it needs a next hop (via), an interface, or both")
    if not 0 < route.table < 1 << 32 or not 0 <= route.metric < 1 << 32:
        raise DinnetError(f"{where}: table {route.table}, metric {route.metric}: out of range")
    if route.segments and route.device is None:
        raise DinnetError(f"{where}: a route with segments needs an interface")
    if prefix.version == 6 and route.metric == 0:
        raise DinnetError(f"{where}: an IPv6 route needs a metric above 0")
    for text in route.segments:
        if _address(where, text).version != 6:
            raise DinnetError(f"{where}: segment {text} is no IPv6 address")
    if route.via is not None and prefix.version == 6 and _address(where, route.via).version != 6:
        raise DinnetError(f"{where}: {route.via} is no IPv6 address")
    if route.via is not None and prefix.version == 4 and _address(where, route.via).version != 4:
        raise DinnetError(f"{where}: {route.via} is no IPv4 address")


def _prefix(route: Route) -> str:
    try:
        return str(ipaddress.ip_network(route.destination))
    except ValueError as error:
        raise DinnetError(f"route to {route.destination}: no prefix: {error}") from None


def _address(where: str, text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise DinnetError(f"{where}: {text} is no IP address") from None


def _unique(items: Iterable[object], message: str) -> None:
    seen = set()
    for item in items:
        if item in seen:
            raise DinnetError(message.format(item))
        seen.add(item)
