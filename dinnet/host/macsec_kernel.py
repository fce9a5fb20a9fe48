"""MACsec links as the kernel has them: looking at them, and the single steps that change them."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dinnet.errors import DinnetError
from dinnet.host.macsec_keys import SaKey
from dinnet.host.macsec_rotation import FIRST_PACKET, Association, Kernel
from dinnet.netns import inside

#: Put before the link's name in the interface's alias: what has it not is not ours.
ALIAS: Final = "dinnet macsec "
CIPHERS: Final = {  # name -> identifier (802.1AE table 14-1), key bytes
    "gcm-aes-128": (0x0080C20001000001, 16),
    "gcm-aes-256": (0x0080C20001000002, 32),
    "gcm-aes-xpn-128": (0x0080C20001000003, 16),
    "gcm-aes-xpn-256": (0x0080C20001000004, 32),
}
#: What Linux calls gcm-aes-128 when it is asked, whatever it was told.
_OLD_GCM_AES_128: Final = 0x0080020001000001
OFFLOADS: Final = ("off", "phy", "mac")


@dataclass(frozen=True, slots=True)
class Counters:
    """Packets since the link was made: sources of dinnet_macsec_{tx,rx,replayed,invalid}_packets_total."""

    tx: int
    rx: int
    replayed: int
    invalid: int  # changed on the way, or made without the key
    unusable: int  # untagged, of an unknown sender, or of an association that is not there


@dataclass(frozen=True, slots=True)
class Device:
    """A macsec interface."""

    index: int
    alias: str
    parent_index: int
    mtu: int
    up: bool
    sci: int
    cipher: str
    encrypt: bool
    replay_window: int | None  # None: replays are taken
    offload: str
    has_channel: bool  # of the peer
    associations: Kernel
    counters: Counters


@dataclass(frozen=True, slots=True)
class Parent:
    index: int
    mtu: int
    mac: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What there is of a link in the kernel."""

    parent: Parent | None
    device: Device | None
    occupied_by: str = ""  # the kind of another interface that has its name


def channel_id(mac: str, port: int) -> int:
    """The SCI: MAC address and port number (802.1AE clause 7.1.2)."""
    return int(mac.replace(":", ""), 16) << 16 | port


class KernelMacsec:
    """Netlink sockets in one network namespace."""

    def __init__(self, ip: Any, macsec: Any) -> None:
        self._ip, self._macsec = ip, macsec

    @classmethod
    @contextlib.contextmanager
    def opened(cls, namespace: str | None = None) -> Iterator[KernelMacsec]:
        """Raises DinnetError where the kernel has no MACsec, or refuses what is asked of it in the block."""
        try:
            from pyroute2 import IPRoute
            from pyroute2.netlink.exceptions import NetlinkError

            from dinnet.host.macsec_netlink import MACsec
        except ImportError:
            raise DinnetError("MACsec needs pyroute2, which is not installed: pip install 'dinnet[switch]'") from None
        with inside(namespace) if namespace else contextlib.nullcontext(), contextlib.ExitStack() as stack:
            try:
                ip = stack.enter_context(IPRoute())
                yield cls(ip, stack.enter_context(_family(MACsec, NetlinkError)))
            except NetlinkError as error:
                # Without the cause: its frames hold the message, and the message the key.
                raise DinnetError(f"the kernel refused a change to MACsec: {error.args[-1]}") from None

    def observe(self, device: str, parent: str, peer: int) -> Observed:
        links = {link.get_attr("IFLA_IFNAME"): link for link in self._ip.get_links()}
        below = links.get(parent)
        found = below and Parent(below["index"], below.get_attr("IFLA_MTU"), below.get_attr("IFLA_ADDRESS"))
        link = links.get(device)
        if link is None:
            return Observed(found, None)
        kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "interface"
        if kind != "macsec":
            return Observed(found, None, kind)
        info = next(i for i in self._macsec.dump() if i.get_attr("MACSEC_ATTR_IFINDEX") == link["index"])
        return Observed(found, _device(link, info, peer))

    def make(
        self, device: str, parent_index: int, link: str, *, cipher: str, port: int, encrypt: bool,
        replay_window: int, offload: str, mtu: int,
    ) -> None:  # fmt: skip
        """A new link, without associations: until it has one, it sends nothing."""
        self._ip.link(
            "add", ifname=device, kind="macsec", link=parent_index, macsec_port=port,
            macsec_cipher_suite=CIPHERS[cipher][0], macsec_icv_len=16, macsec_encrypt=int(encrypt), macsec_protect=1,
            macsec_validation=2, macsec_replay_protect=1, macsec_window=replay_window,
            **({"macsec_offload": OFFLOADS.index(offload)} if offload != "off" else {}),
        )  # fmt: skip
        index = self.index(device)
        self._ip.link("set", index=index, ifalias=ALIAS + link, mtu=mtu)
        self._ip.link("set", index=index, state="up")

    def index(self, device: str) -> int:
        found: list[int] = list(self._ip.link_lookup(ifname=device))
        if not found:
            raise DinnetError(f"{device}: the interface has gone")
        return found[0]

    def set_mode(self, index: int, *, encrypt: bool, replay_window: int, mtu: int) -> None:
        self._ip.link(
            "set", index=index, kind="macsec", macsec_encrypt=int(encrypt), macsec_replay_protect=1,
            macsec_window=replay_window,
        )  # fmt: skip
        self._ip.link("set", index=index, mtu=mtu, state="up")

    def remove(self, index: int) -> None:
        self._ip.link("del", index=index)

    def add_channel(self, index: int, peer: int) -> None:
        self._macsec.rxsc("add", index, sci=peer, active=1)

    def install_rx(self, index: int, peer: int, number: int, key: SaKey, ssci: int, *, replace: bool) -> None:
        an = number % 4
        if replace:
            self._macsec.rxsa("upd", index, peer, an=an, active=0)
            self._macsec.rxsa("del", index, peer, an=an)
        self._macsec.rxsa("add", index, peer, **_sa(an, key, ssci))

    def use_tx(self, index: int, number: int, key: SaKey, ssci: int, present: Kernel) -> None:
        """Install a key, switch to it, and only then take the one before away."""
        an = number % 4
        if an in present.tx:
            self._remove_tx(index, an)
        self._macsec.txsa("add", index, **_sa(an, key, ssci))
        self._ip.link("set", index=index, kind="macsec", macsec_encoding_sa=an)
        for other in present.tx:
            if other != an:
                self._remove_tx(index, other)

    def _remove_tx(self, index: int, an: int) -> None:
        self._macsec.txsa("upd", index, an=an, active=0)
        self._macsec.txsa("del", index, an=an)


@contextlib.contextmanager
def _family(make: Any, netlink_error: Any) -> Iterator[Any]:
    import logging

    logging.getLogger().addFilter(_no_family_message)
    try:
        socket = make()
    except netlink_error as error:
        if error.code == errno.ENOENT:
            raise DinnetError("this kernel has no MACsec (modprobe macsec says why)") from None
        raise
    finally:
        logging.getLogger().removeFilter(_no_family_message)
    with socket:
        yield socket


def _no_family_message(record: Any) -> bool:
    """pyroute2 logs a missing family in two lines of its own; ours says it in one."""
    return "rotocol" not in str(record.msg)


def _sa(an: int, key: SaKey, ssci: int) -> dict[str, Any]:
    from dinnet.host.macsec_netlink import xpn

    packet = FIRST_PACKET if key.salt is None else xpn(FIRST_PACKET)
    extended = {} if key.salt is None else {"ssci": ssci, "salt": key.salt}
    return {"an": an, "pn": packet, "active": 1, "key": bytes(key.key.view), "keyid": key.key_id, **extended}


def _device(link: Any, info: Any, peer: int) -> Device:
    secy = info.get_attr("MACSEC_ATTR_SECY")
    channels = info.get_attr("MACSEC_ATTR_RXSC_LIST") or []
    channel = next((c for c in channels if c.get_attr("MACSEC_RXSC_ATTR_SCI") == peer), None)
    names = {number: name for name, (number, _) in CIPHERS.items()} | {_OLD_GCM_AES_128: "gcm-aes-128"}
    suite = secy.get_attr("MACSEC_SECY_ATTR_CIPHER_SUITE")
    offload = info.get_attr("MACSEC_ATTR_OFFLOAD")
    return Device(
        index=link["index"],
        alias=link.get_attr("IFLA_IFALIAS") or "",
        parent_index=link.get_attr("IFLA_LINK"),
        mtu=link.get_attr("IFLA_MTU"),
        up=bool(link["flags"] & 1),
        sci=secy.get_attr("MACSEC_SECY_ATTR_SCI"),
        cipher=names.get(suite, f"{suite:#x}"),
        encrypt=bool(secy.get_attr("MACSEC_SECY_ATTR_ENCRYPT")),
        replay_window=secy.get_attr("MACSEC_SECY_ATTR_WINDOW") if secy.get_attr("MACSEC_SECY_ATTR_REPLAY") else None,
        offload=OFFLOADS[offload.get_attr("MACSEC_OFFLOAD_ATTR_TYPE") if offload else 0],
        has_channel=channel is not None,
        associations=Kernel(
            secy.get_attr("MACSEC_SECY_ATTR_ENCODING_SA"),
            _associations(info.get_attr("MACSEC_ATTR_TXSA_LIST")),
            _associations(channel.get_attr("MACSEC_RXSC_ATTR_SA_LIST") if channel else None),
        ),
        counters=_counters(info, channels),
    )


def _associations(found: Any) -> Mapping[int, Association]:
    return {
        sa.get_attr("MACSEC_SA_ATTR_AN"): Association(
            bytes(sa.get_attr("MACSEC_SA_ATTR_KEYID")),
            sa.get_attr("MACSEC_SA_ATTR_PN"),
            bool(sa.get_attr("MACSEC_SA_ATTR_ACTIVE")),
        )
        for sa in found or []
    }


def _counters(info: Any, channels: Any) -> Counters:
    def received(*names: str) -> int:
        every = [channel.get_attr("MACSEC_RXSC_ATTR_STATS") for channel in channels]
        return sum(stats.get_attr(f"MACSEC_RXSC_STATS_ATTR_IN_PKTS_{name}") for stats in every for name in names)

    sent, secy = info.get_attr("MACSEC_ATTR_TXSC_STATS"), info.get_attr("MACSEC_ATTR_SECY_STATS")
    return Counters(
        tx=sum(sent.get_attr(f"MACSEC_TXSC_STATS_ATTR_OUT_PKTS_{name}") for name in ("PROTECTED", "ENCRYPTED")),
        rx=received("OK"),
        replayed=received("LATE"),
        invalid=received("INVALID", "NOT_VALID"),
        unusable=received("NOT_USING_SA", "UNUSED_SA")
        + sum(
            secy.get_attr(f"MACSEC_SECY_STATS_ATTR_IN_PKTS_{name}")
            for name in ("NO_TAG", "BAD_TAG", "UNKNOWN_SCI", "NO_SCI")
        ),
    )
