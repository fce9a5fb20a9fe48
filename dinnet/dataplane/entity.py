"""What the entities of P4Runtime have in common: small frozen values that two of can be compared.

The classes of the pipeline's own tables and actions are in `dinnet.dataplane.tables`, which is generated.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple


class Lpm(NamedTuple):
    """A prefix: the first `length` bits of `value`, whose other bits are 0."""

    value: int
    length: int


class Ternary(NamedTuple):
    """Matches where the bits of `mask` are those of `value`, which has none beyond the mask."""

    value: int
    mask: int


ANY = Ternary(0, 0)


class Rates(NamedTuple):
    """A two-rate three-colour marker (RFC 2698): bytes a second, bytes."""

    cir: int
    cburst: int
    pir: int
    pburst: int


class Count(NamedTuple):
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its parameters, which are the class's fields, in the program's order."""

    ALIAS: ClassVar[str]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """An entry: the fields that match, `priority` where entries may overlap, `action` and what hangs on it."""

    TABLE: ClassVar[str]
    MATCH: ClassVar[tuple[str, ...]]

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from every other entity."""
        match = tuple(getattr(self, name) for name in self.MATCH)
        return (self.TABLE, *match, getattr(self, "priority", 0))

    def __str__(self) -> str:
        return f"{self.TABLE}({_shown(self)})"


@dataclass(frozen=True, slots=True)
class DefaultEntry:
    """What a table does with packets that no entry matches. It is only ever modified."""

    table: str
    action: Action

    @property
    def key(self) -> tuple[object, ...]:
        return ("default", self.table)

    def __str__(self) -> str:
        return f"default of {self.table}({self.action})"


@dataclass(frozen=True, slots=True)
class MeterCell:
    """A cell of an indexed meter. Without rates every packet is green. It is only ever modified."""

    meter: str
    index: int
    rates: Rates | None

    @property
    def key(self) -> tuple[object, ...]:
        return ("meter", self.meter, self.index)

    def __str__(self) -> str:
        return f"{self.meter}[{self.index}]({self.rates})"


@dataclass(frozen=True, slots=True)
class Group:
    """A multicast group: a copy to each port."""

    id: int
    ports: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return ("group", self.id)

    def __str__(self) -> str:
        return f"group {self.id}(ports {', '.join(map(str, self.ports))})"


@dataclass(frozen=True, slots=True)
class CloneSession:
    """Where copies of packets go that the program makes for a session, whole."""

    id: int
    ports: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return ("clone session", self.id)

    def __str__(self) -> str:
        return f"clone session {self.id}(ports {', '.join(map(str, self.ports))})"


@dataclass(frozen=True, slots=True)
class DigestConfig:
    """How a digest is listened to; times in nanoseconds, `max_timeout_ns` 0: each digest at once."""

    digest: str
    max_list_size: int = 256
    max_timeout_ns: int = 1_000_000
    ack_timeout_ns: int = 1_000_000_000

    @property
    def key(self) -> tuple[object, ...]:
        return ("digest", self.digest)

    def __str__(self) -> str:
        return f"digest {self.digest}"


Entity = TableEntry | DefaultEntry | MeterCell | Group | CloneSession | DigestConfig


def address(text: str) -> int:
    """An address as the pipeline's tables hold it: IPv6, IPv4 as IPv4-mapped IPv6 (RFC 4291, 2.5.5.2).

    Raises:
        ValueError: It is no address.
    """
    given = ipaddress.ip_address(text)
    return int(given) | 0xFFFF << 32 if given.version == 4 else int(given)


def mac(text: str) -> int:
    """A MAC address.

    Raises:
        ValueError: It is none.
    """
    data = bytes.fromhex(text.replace(":", "").replace("-", ""))
    if len(data) != 6:
        raise ValueError(f"{text}: a MAC address has 6 bytes")
    return int.from_bytes(data, "big")


def prefix(text: str) -> Lpm:
    """An IPv4 or IPv6 prefix as forward_v4 and forward_v6 hold it.

    Raises:
        ValueError: It is none, or has bits behind the prefix.
    """
    network = ipaddress.ip_network(text)
    return Lpm(int(network.network_address), network.prefixlen)


def _shown(value: object) -> str:
    return ", ".join(
        f"{field.name}={getattr(value, field.name)!r}"
        for field in fields(value)  # type: ignore[arg-type]
        if getattr(value, field.name) not in (None, 0, ANY)
    )
