"""A testbed as a file describes it: hosts on switches, links between them, and the traffic that crosses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dinnet.testbed.scenario import Name, WorkloadRun
from dinnet.yamlfile import Misplaced

_STRICT: Final = ConfigDict(extra="forbid", frozen=True)
_MOST_HOSTS: Final = 250
#: An interface is named after the node at its other end, and Linux gives a name 15 characters.
NodeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$", max_length=12)]


class Link(BaseModel):
    """A cable. Its rate holds at the sending side of each switch, its delay and loss in both directions."""

    model_config = _STRICT
    ends: tuple[NodeName, NodeName]
    rate_mbit: float = Field(default=1_000, gt=0, le=10_000)
    delay_ms: float = Field(default=0, ge=0, le=1_000, description="one way")
    loss: float = Field(default=0, ge=0, lt=1)


class Traffic(WorkloadRun):
    """A workload between two hosts."""

    client: NodeName
    server: NodeName


class Topology(BaseModel):
    model_config = _STRICT
    name: Name
    description: str = ""
    hosts: tuple[NodeName, ...] = Field(min_length=2, max_length=_MOST_HOSTS)
    switches: tuple[NodeName, ...] = Field(min_length=1, max_length=64)
    links: tuple[Link, ...] = Field(min_length=1)
    mtu: int = Field(default=1500, ge=1280, le=9_000)
    traffic: tuple[Traffic, ...] = ()
    duration_s: float = Field(default=15, gt=0, le=3_600, description="for how long new work is started")
    seed: int = 1
    intent: dict[str, Any] = Field(
        default={}, description="slices, policy, classifier, token_buckets: as in an intent file"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        nodes = (*self.hosts, *self.switches)
        if twice := next((name for name in nodes if nodes.count(name) > 1), None):
            raise Misplaced(f"{twice} is there twice", "hosts" if twice in self.hosts else "switches")
        if own := sorted({"controller", "switches", "hosts", "links"} & set(self.intent)):
            raise Misplaced(f"{own[0]} follows from the topology; it cannot be given here", "intent", own[0])
        joined: set[frozenset[str]] = set()
        for place, link in enumerate(self.links):
            a, b = link.ends
            for end, name in enumerate(link.ends):
                if name not in nodes:
                    raise Misplaced(f"there is no host and no switch {name}", "links", place, "ends", end)
            if a == b or (a in self.hosts and b in self.hosts):
                raise Misplaced(f"a link joins a switch and another node, not {a} and {b}", "links", place, "ends")
            if frozenset(link.ends) in joined:
                raise Misplaced(f"{a} and {b} are linked already", "links", place, "ends")
            joined.add(frozenset(link.ends))
        for name in self.hosts:
            if (count := sum(name in link.ends for link in self.links)) != 1:
                raise Misplaced(f"host {name} has {count} links; it needs one", "hosts", self.hosts.index(name))
        if apart := [name for name in nodes if name not in self._reached(nodes[0])]:
            raise Misplaced(f"no path leads from {nodes[0]} to {apart[0]}", "links")
        for place, each in enumerate(self.traffic):
            for side in ("client", "server"):
                if (name := getattr(each, side)) not in self.hosts:
                    raise Misplaced(f"there is no host {name}", "traffic", place, side)
            if each.client == each.server:
                raise Misplaced(f"{each.client} would talk to itself", "traffic", place, "server")
        return self

    def neighbours(self, name: str) -> tuple[str, ...]:
        """The nodes at the other ends of a node's links; a switch's port numbers count them from 1."""
        return tuple(link.ends[1 - link.ends.index(name)] for link in self.links if name in link.ends)

    def _reached(self, start: str) -> dict[str, str]:
        """Each node that can be reached, with the node before it on a shortest path from `start`."""
        before, waiting = {start: start}, deque([start])
        while waiting:
            here = waiting.popleft()
            for other in self.neighbours(here):
                if other not in before:
                    before[other] = here
                    if other in self.switches:  # hosts forward nothing
                        waiting.append(other)
        return before

    def ports(self, switch: str) -> dict[int, str]:
        """Port number -> node at its other end."""
        return dict(enumerate(self.neighbours(switch), start=1))

    def ways(self, switch: str) -> Iterator[tuple[str, int]]:
        """Each host, with the port of `switch` that leads to it on a shortest path."""
        numbers = {node: port for port, node in self.ports(switch).items()}
        for host in self.hosts:
            yield host, numbers[self._reached(host)[switch]]

    def station(self, host: str) -> Station:
        number = self.hosts.index(host) + 1
        return Station(f"02:44:49:4e:00:{number:02x}", f"10.78.0.{number}", f"fd78::{number:x}")


class Station(NamedTuple):
    """What a host is known by."""

    mac: str
    v4: str
    v6: str


def interface_to(node: str) -> str:
    """The name of the interface whose cable leads to `node`."""
    return f"to-{node}"


def intent_of(
    topology: Topology, folder: str, namespaces: Mapping[str, str], *, slices: bool, classifier: bool
) -> dict[str, Any]:
    """The intent file of a testbed whose switches serve P4Runtime at `folder`/NAME.p4rt.

    Args:
        topology: Whose.
        folder: Of the sockets.
        namespaces: Node -> network namespace.
        slices: Whether links get slice queues.
        classifier: Whether live flows get marks.
    """
    links = {}
    for link in topology.links:
        for here, there in (link.ends, link.ends[::-1]):
            if slices and here in topology.switches:
                port = next(port for port, node in topology.ports(here).items() if node == there)
                links[f"{here}-to-{there}"] = {
                    "ends": [f"{here}-box/{interface_to(there)}", f"{here}/{port}"],
                    "rate": f"{link.rate_mbit:g}mbit",
                }
    wanted = dict(topology.intent)
    wanted["classifier"] = {**wanted.get("classifier", {}), "enabled": classifier}
    return {
        "controller": {"election_id": 1, "api": f"unix:{folder}/controller.sock", "resync_s": 5},
        "switches": {
            name: {
                "address": f"unix:{folder}/{name}.p4rt",
                "ports": {
                    str(port): {"trusted": node in topology.switches} for port, node in topology.ports(name).items()
                },
                "stations": [{"mac": topology.station(host).mac, "port": port} for host, port in topology.ways(name)],
            }
            for name in topology.switches
        },
        "hosts": {
            f"{name}-box": {
                "netns": namespaces[name],
                "interfaces": [interface_to(node) for node in topology.neighbours(name)],
            }
            for name in topology.switches
        },
        "links": links,
        **wanted,
    }
