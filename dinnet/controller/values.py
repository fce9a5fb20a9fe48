"""The small values of an intent file as people write them."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(bit|kbit|mbit|gbit|tbit)", re.IGNORECASE)
_UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_PROTOCOLS: Final = {"icmp": 1, "tcp": 6, "udp": 17, "ipv6-icmp": 58}
_MOST_BPS: Final = 10**13


def rate_bps(given: Any) -> int:
    """Bits a second: a number, or text with a unit as tc takes it (`50mbit`).

    Raises:
        ValueError: It is none.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        value = given
    else:
        found = _RATE.fullmatch(given.strip()) if isinstance(given, str) else None
        if found is None:
            raise ValueError(f"{given!r} is no rate; write it like 50mbit (bit, kbit, mbit, gbit, tbit)")
        value = round(float(found[1]) * _UNITS[found[2].lower()])
    if not 0 < value <= _MOST_BPS:
        raise ValueError(f"a rate is between 1bit and 10tbit, not {given}")
    return value


def share(given: Any) -> float | int:
    """A rate, or a percentage of what it is a part of, which becomes a float between 0 and 1.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(given, float) and 0 <= given <= 1:
        return given
    if isinstance(given, str) and given.strip().endswith("%"):
        try:
            value = float(given.strip()[:-1]) / 100
        except ValueError:
            raise ValueError(f"{given!r} is no percentage") from None
        if not 0 <= value <= 1:
            raise ValueError(f"a percentage is between 0% and 100%, not {given}")
        return value
    return rate_bps(given)


def of(part: float | int, whole_bps: int) -> int:
    """A `share` as bits a second."""
    return int(part * whole_bps) if isinstance(part, float) else part


def _protocol(given: Any) -> int:
    if isinstance(given, str) and given.lower() in _PROTOCOLS:
        return _PROTOCOLS[given.lower()]
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= 255:
        return given
    raise ValueError(f"{given!r} is no protocol; write tcp, udp, icmp, ipv6-icmp or a number up to 255")


def _network(given: str) -> str:
    try:
        return str(ipaddress.ip_network(given))
    except ValueError as error:
        raise ValueError(str(error)) from None


def _address(given: str) -> str:
    try:
        return str(ipaddress.ip_address(given))
    except ValueError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Interface = Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[^/\s]+$")]
RateBps = Annotated[int, BeforeValidator(rate_bps, json_schema_input_type=int | str)]
Share = Annotated[float | int, BeforeValidator(share, json_schema_input_type=int | float | str)]
Mac = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$")]
Network = Annotated[str, AfterValidator(_network)]
Address = Annotated[str, AfterValidator(_address)]
Protocol = Annotated[int, BeforeValidator(_protocol, json_schema_input_type=int | str)]
PortNumber = Annotated[int, Field(ge=0, le=509)]  # of a switch: see p4/include/sizes.p4
L4Port = Annotated[int, Field(ge=0, le=65535)]
Vlan = Annotated[int, Field(ge=0, le=4094)]
Tc = Annotated[int, Field(ge=0, le=3)]
#: Where something listens: HOST:PORT, or unix:PATH.
Endpoint = Annotated[str, Field(pattern=r"^(unix:.+|\[?[^\s\[\]]+\]?:\d{1,5})$")]
