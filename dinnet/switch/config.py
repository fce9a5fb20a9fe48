"""What `dinnet switch up -c FILE` reads: the ports, where P4Runtime is served, how much memory the tables may take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dinnet.yamlfile import load_yaml

_STRICT: Final = ConfigDict(extra="forbid", frozen=True)
#: Port numbers as in p4/include/sizes.p4: the last two are the controller's and "no port".
_LAST_PORT: Final = 509

Interface = Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[^/\s]+$")]


class Tls(BaseModel):
    """PEM files of the P4Runtime server, relative to the configuration file."""

    model_config = _STRICT
    cert: Path
    key: Path
    client_ca: Path | None = None  # clients must show a certificate that it signed


class P4Runtime(BaseModel):
    model_config = _STRICT
    listen: str = "127.0.0.1:9559"  # HOST:PORT, or unix:PATH
    tls: Tls | None = None


class Tables(BaseModel):
    """How many entries the large tables hold; all of a table's memory is taken when the switch starts."""

    model_config = _STRICT
    microflows: int = Field(default=131_072, ge=1024, le=1 << 20)
    flows: int = Field(default=65_536, ge=1024, le=1 << 22)  # flow records under way; a power of two

    @field_validator("flows")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"{value} is not a power of two")
        return value


class SwitchConfig(BaseModel):
    """One switch."""

    model_config = _STRICT
    name: str = Field(default="switch", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$")
    device_id: int = Field(default=1, ge=1, le=2**64 - 1)
    netns: str | None = None  # the namespace of its interfaces, a name as in `ip netns`; None: where it is started
    ports: dict[int, Interface] = Field(min_length=1)  # port number -> interface
    p4runtime: P4Runtime = P4Runtime()
    tables: Tables = Tables()
    queue_telemetry: bool = True  # times and backlogs of the egress queues, where the kernel has BTF

    @model_validator(mode="after")
    def _ports_fit(self) -> Self:
        for number in self.ports:
            if not 0 <= number <= _LAST_PORT:
                raise ValueError(f"port {number}: port numbers go from 0 to {_LAST_PORT}")
        names = list(self.ports.values())
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"interface {twice} is there twice")
        return self


def load_config(path: Path) -> SwitchConfig:
    """Read a switch's description; paths in it are relative to it.

    Raises:
        DinnetError: It cannot be read, or a value in it is wrong; with file, line and reason.
    """
    config = load_yaml(path, SwitchConfig)
    tls = config.p4runtime.tls
    if tls is None:
        return config
    places = {name: path.parent / place for name, place in tls if place is not None}
    runtime = config.p4runtime.model_copy(update={"tls": tls.model_copy(update=places)})
    return config.model_copy(update={"p4runtime": runtime})
