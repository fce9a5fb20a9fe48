"""MACsec for pyroute2, which lacks it: the link kind `macsec` and the generic netlink family of the same name.

Written as pyroute2 writes its own: messages are tables of attributes, one asynchronous class sends them, and a
synchronous one wraps it. Names and numbers are those of Linux' include/uapi/linux/if_link.h and if_macsec.h.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pyroute2.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, genlmsg, nla
from pyroute2.netlink.generic import AsyncGenericNetlinkSocket, GenericNetlinkSocket
from pyroute2.netlink.rtnl.ifinfmsg import ifinfbase

MACSEC_GENL_NAME: Final = "macsec"
MACSEC_GENL_VERSION: Final = 1

MACSEC_CMD_GET_TXSC: Final = 0
MACSEC_CMD_ADD_RXSC: Final = 1
MACSEC_CMD_DEL_RXSC: Final = 2
MACSEC_CMD_UPD_RXSC: Final = 3
MACSEC_CMD_ADD_TXSA: Final = 4
MACSEC_CMD_DEL_TXSA: Final = 5
MACSEC_CMD_UPD_TXSA: Final = 6
MACSEC_CMD_ADD_RXSA: Final = 7
MACSEC_CMD_DEL_RXSA: Final = 8
MACSEC_CMD_UPD_RXSA: Final = 9
MACSEC_CMD_UPD_OFFLOAD: Final = 10

MACSEC_CIPHER_ID_GCM_AES_128: Final = 0x0080C20001000001
MACSEC_CIPHER_ID_GCM_AES_256: Final = 0x0080C20001000002
MACSEC_CIPHER_ID_GCM_AES_XPN_128: Final = 0x0080C20001000003
MACSEC_CIPHER_ID_GCM_AES_XPN_256: Final = 0x0080C20001000004

_NLA_HEADER_BYTES: Final = 4


class xpn(int):
    """A packet number of 64 bits, as the XPN cipher suites take them; a plain int is sent with 32."""


class macsec_link(nla):  # type: ignore[misc]
    """IFLA_INFO_DATA of the link kind `macsec`."""

    prefix = "IFLA_"
    nla_map = (
        ("IFLA_MACSEC_UNSPEC", "none"),
        ("IFLA_MACSEC_SCI", "be64"),
        ("IFLA_MACSEC_PORT", "be16"),
        ("IFLA_MACSEC_ICV_LEN", "uint8"),
        ("IFLA_MACSEC_CIPHER_SUITE", "uint64"),
        ("IFLA_MACSEC_WINDOW", "uint32"),
        ("IFLA_MACSEC_ENCODING_SA", "uint8"),
        ("IFLA_MACSEC_ENCRYPT", "uint8"),
        ("IFLA_MACSEC_PROTECT", "uint8"),
        ("IFLA_MACSEC_INC_SCI", "uint8"),
        ("IFLA_MACSEC_ES", "uint8"),
        ("IFLA_MACSEC_SCB", "uint8"),
        ("IFLA_MACSEC_REPLAY_PROTECT", "uint8"),
        ("IFLA_MACSEC_VALIDATION", "uint8"),
        ("IFLA_MACSEC_PAD", "hex"),
        ("IFLA_MACSEC_OFFLOAD", "uint8"),
    )


ifinfbase.ifinfo.register_link_kind(module={"macsec": macsec_link})


class sa_stats(nla):  # type: ignore[misc]
    prefix = "MACSEC_SA_STATS_ATTR_"
    nla_map = (
        ("MACSEC_SA_STATS_ATTR_UNSPEC", "none"),
        ("MACSEC_SA_STATS_ATTR_IN_PKTS_OK", "uint32"),
        ("MACSEC_SA_STATS_ATTR_IN_PKTS_INVALID", "uint32"),
        ("MACSEC_SA_STATS_ATTR_IN_PKTS_NOT_VALID", "uint32"),
        ("MACSEC_SA_STATS_ATTR_IN_PKTS_NOT_USING_SA", "uint32"),
        ("MACSEC_SA_STATS_ATTR_IN_PKTS_UNUSED_SA", "uint32"),
        ("MACSEC_SA_STATS_ATTR_OUT_PKTS_PROTECTED", "uint32"),
        ("MACSEC_SA_STATS_ATTR_OUT_PKTS_ENCRYPTED", "uint32"),
    )


class sa_config(nla):  # type: ignore[misc]
    """A secure association; the kernel takes KEY and never gives it back."""

    prefix = "MACSEC_SA_ATTR_"
    nla_map = (
        ("MACSEC_SA_ATTR_UNSPEC", "none"),
        ("MACSEC_SA_ATTR_AN", "uint8"),
        ("MACSEC_SA_ATTR_ACTIVE", "uint8"),
        ("MACSEC_SA_ATTR_PN", "packet_number"),
        ("MACSEC_SA_ATTR_KEY", "cdata"),
        ("MACSEC_SA_ATTR_KEYID", "cdata"),
        ("MACSEC_SA_ATTR_STATS", "sa_stats"),
        ("MACSEC_SA_ATTR_PAD", "hex"),
        ("MACSEC_SA_ATTR_SSCI", "be32"),
        ("MACSEC_SA_ATTR_SALT", "cdata"),
    )
    sa_stats = sa_stats

    @staticmethod
    def packet_number(parent: Any, *_: Any, **found: Any) -> Any:
        """32 bits, or 64 with an XPN cipher suite: the attribute's length says which."""
        if "data" in found:
            (length,) = struct.unpack_from("H", found["data"], found["offset"])
            wide = length == _NLA_HEADER_BYTES + 8
        else:
            wide = isinstance(found.get("value"), xpn)
        return parent.uint64 if wide else parent.uint32


class rxsc_stats(nla):  # type: ignore[misc]
    prefix = "MACSEC_RXSC_STATS_ATTR_"
    nla_map = (
        ("MACSEC_RXSC_STATS_ATTR_UNSPEC", "none"),
        ("MACSEC_RXSC_STATS_ATTR_IN_OCTETS_VALIDATED", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_OCTETS_DECRYPTED", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_UNCHECKED", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_DELAYED", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_OK", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_INVALID", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_LATE", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_NOT_VALID", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_NOT_USING_SA", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_IN_PKTS_UNUSED_SA", "uint64"),
        ("MACSEC_RXSC_STATS_ATTR_PAD", "hex"),
    )


class rxsc_config(nla):  # type: ignore[misc]
    """A receive channel: the peer that frames are taken from, by its SCI."""

    prefix = "MACSEC_RXSC_ATTR_"
    nla_map = (
        ("MACSEC_RXSC_ATTR_UNSPEC", "none"),
        ("MACSEC_RXSC_ATTR_SCI", "be64"),
        ("MACSEC_RXSC_ATTR_ACTIVE", "uint8"),
        ("MACSEC_RXSC_ATTR_SA_LIST", "*sa_config"),
        ("MACSEC_RXSC_ATTR_STATS", "rxsc_stats"),
        ("MACSEC_RXSC_ATTR_PAD", "hex"),
    )
    sa_config = sa_config
    rxsc_stats = rxsc_stats


class macsecmsg(genlmsg):  # type: ignore[misc]
    prefix = "MACSEC_ATTR_"
    nla_map = (
        ("MACSEC_ATTR_UNSPEC", "none"),
        ("MACSEC_ATTR_IFINDEX", "uint32"),
        ("MACSEC_ATTR_RXSC_CONFIG", "rxsc_config"),
        ("MACSEC_ATTR_SA_CONFIG", "sa_config"),
        ("MACSEC_ATTR_SECY", "secy"),
        ("MACSEC_ATTR_TXSA_LIST", "*sa_config"),
        ("MACSEC_ATTR_RXSC_LIST", "*rxsc_config"),
        ("MACSEC_ATTR_TXSC_STATS", "txsc_stats"),
        ("MACSEC_ATTR_SECY_STATS", "secy_stats"),
        ("MACSEC_ATTR_OFFLOAD", "offload"),
    )
    sa_config = sa_config
    rxsc_config = rxsc_config

    class secy(nla):  # type: ignore[misc]
        prefix = "MACSEC_SECY_ATTR_"
        nla_map = (
            ("MACSEC_SECY_ATTR_UNSPEC", "none"),
            ("MACSEC_SECY_ATTR_SCI", "be64"),
            ("MACSEC_SECY_ATTR_ENCODING_SA", "uint8"),
            ("MACSEC_SECY_ATTR_WINDOW", "uint32"),
            ("MACSEC_SECY_ATTR_CIPHER_SUITE", "uint64"),
            ("MACSEC_SECY_ATTR_ICV_LEN", "uint8"),
            ("MACSEC_SECY_ATTR_PROTECT", "uint8"),
            ("MACSEC_SECY_ATTR_REPLAY", "uint8"),
            ("MACSEC_SECY_ATTR_OPER", "uint8"),
            ("MACSEC_SECY_ATTR_VALIDATE", "uint8"),
            ("MACSEC_SECY_ATTR_ENCRYPT", "uint8"),
            ("MACSEC_SECY_ATTR_INC_SCI", "uint8"),
            ("MACSEC_SECY_ATTR_ES", "uint8"),
            ("MACSEC_SECY_ATTR_SCB", "uint8"),
            ("MACSEC_SECY_ATTR_PAD", "hex"),
        )

    class txsc_stats(nla):  # type: ignore[misc]
        prefix = "MACSEC_TXSC_STATS_ATTR_"
        nla_map = (
            ("MACSEC_TXSC_STATS_ATTR_UNSPEC", "none"),
            ("MACSEC_TXSC_STATS_ATTR_OUT_PKTS_PROTECTED", "uint64"),
            ("MACSEC_TXSC_STATS_ATTR_OUT_PKTS_ENCRYPTED", "uint64"),
            ("MACSEC_TXSC_STATS_ATTR_OUT_OCTETS_PROTECTED", "uint64"),
            ("MACSEC_TXSC_STATS_ATTR_OUT_OCTETS_ENCRYPTED", "uint64"),
            ("MACSEC_TXSC_STATS_ATTR_PAD", "hex"),
        )

    class secy_stats(nla):  # type: ignore[misc]
        prefix = "MACSEC_SECY_STATS_ATTR_"
        nla_map = (
            ("MACSEC_SECY_STATS_ATTR_UNSPEC", "none"),
            ("MACSEC_SECY_STATS_ATTR_OUT_PKTS_UNTAGGED", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_IN_PKTS_UNTAGGED", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_OUT_PKTS_TOO_LONG", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_IN_PKTS_NO_TAG", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_IN_PKTS_BAD_TAG", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_IN_PKTS_UNKNOWN_SCI", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_IN_PKTS_NO_SCI", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_IN_PKTS_OVERRUN", "uint64"),
            ("MACSEC_SECY_STATS_ATTR_PAD", "hex"),
        )

    class offload(nla):  # type: ignore[misc]
        prefix = "MACSEC_OFFLOAD_ATTR_"
        nla_map = (
            ("MACSEC_OFFLOAD_ATTR_UNSPEC", "none"),
            ("MACSEC_OFFLOAD_ATTR_TYPE", "uint8"),
            ("MACSEC_OFFLOAD_ATTR_PAD", "hex"),
        )


def request(
    command: int, ifindex: int, *, sci: int | None = None, sa: dict[str, Any] | None = None, **rxsc: Any
) -> Any:
    """A message of the family, for one macsec link.

    `sci` and further keywords go into RXSC_CONFIG, `sa` into SA_CONFIG; their keys are the attributes' names in lower
    case without prefix, as in `{"an": 1, "pn": 1, "active": 1}`.
    """
    message = macsecmsg()
    message["cmd"], message["version"] = command, MACSEC_GENL_VERSION
    message["attrs"] = [("MACSEC_ATTR_IFINDEX", ifindex)]
    if sci is not None:
        message["attrs"].append(("MACSEC_ATTR_RXSC_CONFIG", _nested("MACSEC_RXSC_ATTR_", {"sci": sci, **rxsc})))
    if sa is not None:
        message["attrs"].append(("MACSEC_ATTR_SA_CONFIG", _nested("MACSEC_SA_ATTR_", sa)))
    return message


def _nested(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"attrs": [(prefix + name.upper(), value) for name, value in values.items()]}


class AsyncMACsec(AsyncGenericNetlinkSocket):  # type: ignore[misc]
    async def setup_endpoint(self) -> None:
        if getattr(self.local, "transport", None) is not None:
            return
        await super().setup_endpoint()
        await self.bind(MACSEC_GENL_NAME, macsecmsg)

    async def change(self, message: Any) -> list[Any]:
        answers = await self.nlm_request(message, msg_type=self.prid, msg_flags=NLM_F_REQUEST | NLM_F_ACK)
        return [answer async for answer in answers]

    async def dump(self) -> list[Any]:
        message = macsecmsg()
        message["cmd"], message["version"] = MACSEC_CMD_GET_TXSC, MACSEC_GENL_VERSION
        answers = await self.nlm_request(message, msg_type=self.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP)
        return [answer async for answer in answers]


class MACsec(GenericNetlinkSocket):  # type: ignore[misc]
    """MACsec links of the network namespace that it is made in.

    ::

        with MACsec() as macsec:
            macsec.rxsc('add', ifindex, sci=0x5e22586e3d760001, active=1)
            macsec.txsa('add', ifindex, an=0, pn=1, active=1, key=key, keyid=bytes(16))
            macsec.rxsa('add', ifindex, sci=0x5e22586e3d760001, an=0, pn=1, active=1, key=key, keyid=bytes(16))
            for link in macsec.dump(): ...
    """

    async_class = AsyncMACsec

    def dump(self) -> list[Any]:
        """All macsec links with their associations and counters."""
        found: list[Any] = self._run_with_cleanup(self.asyncore.dump)
        return found

    def rxsc(self, command: str, ifindex: int, sci: int, **attributes: Any) -> None:
        """Add, del or upd (set) a receive channel."""
        numbers = {"add": MACSEC_CMD_ADD_RXSC, "del": MACSEC_CMD_DEL_RXSC, "upd": MACSEC_CMD_UPD_RXSC}
        self._change(request(numbers[command], ifindex, sci=sci, **attributes))

    def txsa(self, command: str, ifindex: int, **sa: Any) -> None:
        """Add, del or upd (set) an association of the own transmit channel."""
        numbers = {"add": MACSEC_CMD_ADD_TXSA, "del": MACSEC_CMD_DEL_TXSA, "upd": MACSEC_CMD_UPD_TXSA}
        self._change(request(numbers[command], ifindex, sa=sa))

    def rxsa(self, command: str, ifindex: int, sci: int, **sa: Any) -> None:
        """Add, del or upd (set) an association of a receive channel."""
        numbers = {"add": MACSEC_CMD_ADD_RXSA, "del": MACSEC_CMD_DEL_RXSA, "upd": MACSEC_CMD_UPD_RXSA}
        self._change(request(numbers[command], ifindex, sci=sci, sa=sa))

    def _change(self, message: Any) -> None:
        self._run_with_cleanup(self.asyncore.change, message)
