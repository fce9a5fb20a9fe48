"""What an intent says of one switch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dinnet.controller.values import Address, L4Port, Mac, Name, Network, PortNumber, Protocol, Tc, Vlan
from dinnet.yamlfile import Misplaced

STRICT: Final = ConfigDict(extra="forbid", frozen=True)
_NO_MAC: Final = "00:00:00:00:00:00"

#: What INT metadata may hold, and its bit of the instruction bitmap (INT 2.1, section 5.7).
INT_BITS: Final = {
    "node_id": 0x8000,
    "ports": 0x4000,
    "hop_latency": 0x2000,
    "queue": 0x1000,
    "ingress_time": 0x0800,
    "egress_time": 0x0400,
    "level2_ports": 0x0200,
    "tx_utilization": 0x0100,
    "buffer": 0x0080,
}
IntField = Literal[
    "node_id",
    "ports",
    "hop_latency",
    "queue",
    "ingress_time",
    "egress_time",
    "level2_ports",
    "tx_utilization",
    "buffer",
]


class Tls(BaseModel):
    """PEM files, relative to the intent file."""

    model_config = STRICT
    ca: Path
    cert: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key come together")
        return self


class Port(BaseModel):
    model_config = STRICT
    trusted: bool = False  # packets keep the meaning of their DSCP where nothing else says what they are
    flow_labels: bool = False  # senders set an IPv6 flow label per conversation
    int_sink: bool = False  # INT ends here: packets that leave by this port carry none
    mtu: int = Field(default=1500, ge=576, le=65535)  # that packets with INT must fit in


class Route(BaseModel):
    """Where packets to a prefix go: out of a port, to the controller, or nowhere."""

    model_config = STRICT
    to: Network
    port: PortNumber | None = None
    src: Mac = _NO_MAC  # the packet's new Ethernet addresses
    dst: Mac = _NO_MAC
    drop: bool = False
    to_controller: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.port is not None) + self.drop + self.to_controller != 1:
            raise ValueError("give one of port, drop, to_controller")
        if self.port is not None and _NO_MAC in (self.src, self.dst):
            raise ValueError("a route out of a port needs src and dst, the Ethernet addresses of its next hop")
        return self


class Station(BaseModel):
    """Where frames to an Ethernet address go, where no route knows better."""

    model_config = STRICT
    mac: Mac
    vlan: Vlan = 0
    port: PortNumber | None = None
    flood: int | None = Field(default=None, ge=1, le=65535)  # number of a group
    drop: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.port is not None) + (self.flood is not None) + self.drop != 1:
            raise ValueError("give one of port, flood, drop")
        return self


class Match(BaseModel):
    """Which packets: all that fit every key that is given."""

    model_config = STRICT
    port: PortNumber | None = None  # that they come in on
    src: Network | None = None
    dst: Network | None = None
    proto: Protocol | None = None
    sport: L4Port | None = None
    dport: L4Port | None = None
    vlan: Vlan | None = None

    @model_validator(mode="after")
    def _families(self) -> Self:
        if self.src is not None and self.dst is not None and (":" in self.src) != (":" in self.dst):
            raise ValueError("src and dst are of two IP versions")
        return self


class Rule(Match):
    """A static micro-flow rule: what the classifier is not asked about, and what comes before its first word."""

    slice: Name
    tc: Tc
    priority: Annotated[int, Field(ge=1, le=2**31 - 1)]  # the highest wins


class Watch(Match):
    """Packets that are followed by INT."""

    mode: Literal["md", "xd", "off"]
    fields: tuple[IntField, ...] = ("node_id", "ports", "hop_latency", "queue", "ingress_time", "egress_time")
    hops: int = Field(default=8, ge=1, le=255)
    priority: Annotated[int, Field(ge=1, le=2**31 - 1)]


class Collector(BaseModel):
    """Who gets the reports, and how they are addressed."""

    model_config = STRICT
    port: PortNumber  # that reports leave by
    src_mac: Mac
    dst_mac: Mac
    src: Address
    dst: Address
    sport: L4Port = 4794
    dport: L4Port = 32766

    @model_validator(mode="after")
    def _ipv4(self) -> Self:
        if ":" in self.src or ":" in self.dst:
            raise ValueError("reports are sent over IPv4")
        return self


class Telemetry(BaseModel):
    model_config = STRICT
    node_id: int = Field(ge=0, le=2**32 - 2)
    watch: tuple[Watch, ...] = ()
    collector: Collector | None = None

    @model_validator(mode="after")
    def _reported(self) -> Self:
        if self.collector is None and any(watch.mode == "xd" for watch in self.watch):
            raise ValueError("a watch of mode xd only makes reports: give a collector")
        return self


class Reroute(BaseModel):
    """The alternate path of a slice's packets above their token bucket."""

    model_config = STRICT
    port: PortNumber
    src: Mac = _NO_MAC  # zeros: as it is
    dst: Mac = _NO_MAC


class Switch(BaseModel):
    model_config = STRICT
    address: str = Field(pattern=r"^(unix:.+|\[?[^\s\[\]]+\]?:\d{1,5})$")  # of its P4Runtime server
    device_id: int = Field(default=1, ge=1, le=2**64 - 1)
    tls: Tls | None = None
    ports: dict[PortNumber, Port] = Field(min_length=1)
    routes: tuple[Route, ...] = ()
    stations: tuple[Station, ...] = ()
    groups: dict[Annotated[int, Field(ge=1, le=65535)], tuple[PortNumber, ...]] = {}
    flood_unknown: int | None = None  # the group that frames to unknown stations go to; None: dropped
    rules: tuple[Rule, ...] = ()
    reroute: dict[Name, Reroute] = {}  # by slice
    telemetry: Telemetry | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._known_ports()
        self._distinct()
        return self

    def _known_ports(self) -> None:
        named: list[tuple[int | None, tuple[int | str, ...]]] = []
        for kind in ("routes", "stations", "rules"):
            named += [(each.port, (kind, place, "port")) for place, each in enumerate(getattr(self, kind))]
        named += [(each.port, ("reroute", name, "port")) for name, each in self.reroute.items()]
        named += [(port, ("groups", number)) for number, ports in self.groups.items() for port in ports]
        if self.telemetry is not None:
            named += [
                (each.port, ("telemetry", "watch", place, "port")) for place, each in enumerate(self.telemetry.watch)
            ]
            if self.telemetry.collector is not None:
                named.append((self.telemetry.collector.port, ("telemetry", "collector", "port")))
        for port, location in named:
            if port is not None and port not in self.ports:
                raise Misplaced(f"the switch has no port {port}; its ports are {_listed(self.ports)}", *location)
        floods: list[tuple[int | None, tuple[int | str, ...]]] = [(self.flood_unknown, ("flood_unknown",))]
        floods += [(each.flood, ("stations", place, "flood")) for place, each in enumerate(self.stations)]
        for group, location in floods:
            if group is not None and group not in self.groups:
                raise Misplaced(f"there is no group {group} among groups", *location)

    def _distinct(self) -> None:
        _once("routes", [(each.to,) for each in self.routes], "there is a route to {} already")
        _once("stations", [(each.mac.lower(), each.vlan) for each in self.stations], "the station {} is there already")
        _once(
            "rules",
            [(*each.model_dump(exclude={"slice", "tc", "priority"}).values(), each.priority) for each in self.rules],
            "it overlaps another rule of the same match and priority",
        )


def _once(kind: str, keys: list[tuple[object, ...]], why: str) -> None:
    seen = set()
    for place, key in enumerate(keys):
        if key in seen:
            raise Misplaced(why.format(key[0]), kind, place)
        seen.add(key)


def _listed(numbers: dict[int, Port]) -> str:
    return ", ".join(map(str, sorted(numbers)))
