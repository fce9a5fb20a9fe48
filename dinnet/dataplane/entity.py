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
    BITS: ClassVar[dict[str, int]] = {}

    def __str__(self) -> str:
        return f"{self.ALIAS}({_shown(self, self.BITS)})"


@dataclass(frozen=True, slots=True)
class TableEntry:
    """An entry: the fields that match, `priority` where entries may overlap, `action` and what hangs on it."""

    TABLE: ClassVar[str]
    MATCH: ClassVar[tuple[str, ...]]
    BITS: ClassVar[dict[str, int]]  # widths of the fields that match

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from every other entity."""
        match = tuple(getattr(self, name) for name in self.MATCH)
        return (self.TABLE, *match, getattr(self, "priority", 0))

    def __str__(self) -> str:
        return f"{self.TABLE}({_shown(self, self.BITS)})"


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


def in_words(value: int, bits: int) -> str:
    """A value as people write one of that width: 48 bits are a MAC address, 128 an IP address, others a number."""
    if bits == 48 and value < 1 << 48:
        return value.to_bytes(6, "big").hex(":")
    if bits == 128 and value < 1 << 128:
        return str(ipaddress.IPv4Address(value & 0xFFFFFFFF) if value >> 32 == 0xFFFF else ipaddress.IPv6Address(value))
    return str(value)


def _shown(entity: Action | TableEntry, bits: dict[str, int]) -> str:
    found = []
    for field in fields(entity):
        value, width = getattr(entity, field.name), bits.get(field.name, 0)
        if value is None or (value == ANY and isinstance(value, Ternary)):
            continue
        if isinstance(value, Lpm):
            shown = f"{ipaddress.ip_address(value.value.to_bytes(width // 8, 'big'))}/{value.length}"
        elif isinstance(value, Ternary):
            shown = in_words(value.value, width)
            if value.mask != (1 << width) - 1:
                shown += f"&{ipaddress.IPv6Address(value.mask)}" if width == 128 else f"&{value.mask:#x}"
        else:
            shown = in_words(value, width) if isinstance(value, int) else str(value)
        found.append(f"{field.name}={shown}")
    return ", ".join(found)
