"""What `dinnet macsec ... -c FILE` reads: this host's ends of encrypted links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dinnet.host.macsec import MacsecLink
from dinnet.yamlfile import load_yaml

_STRICT: Final = ConfigDict(extra="forbid", frozen=True)

Interface = Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[^/\s]+$")]
Port = Annotated[int, Field(ge=1, le=0xFFFF)]


class LinkConfig(BaseModel):
    """One end."""

    model_config = _STRICT
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")  # the same at both ends
    device: Interface
    parent: Interface
    peer_mac: str = Field(pattern=r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")
    peer_port: Port = 1
    port: Port = 1
    key: Path  # a file, or a folder that holds NAME.key; relative to the configuration file
    cipher: Literal["gcm-aes-128", "gcm-aes-256", "gcm-aes-xpn-128", "gcm-aes-xpn-256"] = "gcm-aes-256"
    replay_window: int = Field(default=0, ge=0, le=2**30)
    encrypt: bool = True
    offload: Literal["off", "phy", "mac"] = "off"
    mka: bool = False
    payload_bytes: int = Field(default=1400, ge=68, le=65535)
    int_bytes: int = Field(default=0, ge=0, le=1024)


class MacsecConfig(BaseModel):
    """All ends of a host, or of one of its network namespaces."""

    model_config = _STRICT
    state: Path = Path("/var/lib/dinnet/macsec")  # what must outlive a restart
    netns: str | None = None
    links: tuple[LinkConfig, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for what in ("name", "device"):
            values = [getattr(link, what) for link in self.links]
            if twice := next((value for value in values if values.count(value) > 1), None):
                raise ValueError(f"two links have the {what} {twice}")
        return self


def load_config(path: Path) -> tuple[MacsecConfig, tuple[MacsecLink, ...]]:
    """Read a host's links; paths are relative to the file.

    Raises:
        DinnetError: It cannot be read, or a value in it is wrong; with file, line and reason.
    """
    config = load_yaml(path, MacsecConfig)
    folder = path.absolute().parent
    links = tuple(
        MacsecLink(
            **link.model_dump(exclude={"key", "peer_mac"}), key_source=folder / link.key, peer_mac=link.peer_mac.lower()
        )
        for link in config.links
    )
    return config.model_copy(update={"state": folder / config.state}), links
