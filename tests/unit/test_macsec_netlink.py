"""Messages against the bytes that iproute2 6.1 sent for the same commands (strace of `ip macsec`)."""

from __future__ import annotations

import pytest

pytest.importorskip("pyroute2")

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from dinnet.host import macsec_netlink as netlink

KEY = bytes(range(32))
SCI = 0x0200000000010001
KEY_ID = bytes.fromhex("0a0b").ljust(16, b"\0")
HEADER_BYTES = 16


def body(message: object) -> str:
    message.encode()  # type: ignore[attr-defined]
    return bytes(message.data[HEADER_BYTES:]).hex()  # type: ignore[attr-defined]


def nla(kind: str, value: str) -> str:
    """An attribute by hand: length with its header, number, value, padded to 4 bytes."""
    size = 4 + len(value) // 2
    return size.to_bytes(2, "little").hex() + kind + value + "00" * (-size % 4)


INDEX = nla("0100", "04000000")
KEYED = nla("0500", KEY_ID.hex()) + nla("0400", KEY.hex())


def test_add_tx_sa() -> None:
    # ip macsec add ms0 tx sa 1 pn 5 on key 0a0b 0001..1f; the order of attributes is free
    sa = {"an": 1, "pn": 5, "keyid": KEY_ID, "key": KEY, "active": 1}
    expected = nla("0100", "01") + nla("0300", "05000000") + KEYED + nla("0200", "01")
    assert len(expected) // 2 + 4 == 0x54
    message = body(netlink.request(netlink.MACSEC_CMD_ADD_TXSA, 4, sa=sa))
    assert message == "04010000" + INDEX + nla("0300", expected)


def test_add_rx_channel_and_sa() -> None:
    channel = body(netlink.request(netlink.MACSEC_CMD_ADD_RXSC, 4, sci=SCI, active=1))
    assert channel == "0101000008000100040000001800020" + "00c0001000200000000010001" + "0500020001000000"
    sa = {"an": 2, "pn": 7, "keyid": KEY_ID, "key": KEY, "active": 1}
    expected = nla("0100", "02") + nla("0300", "07000000") + KEYED + nla("0200", "01")
    message = body(netlink.request(netlink.MACSEC_CMD_ADD_RXSA, 4, sci=SCI, sa=sa))
    assert message == "07010000" + INDEX + nla("0200", nla("0100", "0200000000010001")) + nla("0300", expected)


def test_switching_off_and_deleting() -> None:
    off = body(netlink.request(netlink.MACSEC_CMD_UPD_TXSA, 4, sa={"an": 1, "active": 0}))
    assert off == "060100000800010004000000140003000500010001000000" + "0500020000000000"
    gone = body(netlink.request(netlink.MACSEC_CMD_DEL_TXSA, 4, sa={"an": 1}))
    assert gone == "0501000008000100040000000c0003000500010001000000"


def test_extended_packet_numbers() -> None:
    # ip macsec add ms1 tx sa 0 xpn 5 ssci 1 salt 0102..0c on key 0a0b 0001..0f
    salt = bytes(range(1, 13))
    sa = {"an": 0, "pn": netlink.xpn(5), "salt": salt, "ssci": 1, "keyid": KEY_ID, "key": KEY[:16], "active": 1}
    expected = (
        nla("0100", "00") + nla("0300", "0500000000000000") + nla("0900", salt.hex()) + nla("0800", "00000001")
        + nla("0500", KEY_ID.hex()) + nla("0400", KEY[:16].hex()) + nla("0200", "01")
    )  # fmt: skip
    assert len(expected) // 2 + 4 == 0x60
    message = body(netlink.request(netlink.MACSEC_CMD_ADD_TXSA, 5, sa=sa))
    assert message == "04010000" + nla("0100", "05000000") + nla("0300", expected)


@pytest.mark.parametrize(("number", "size"), [(2**32 - 1, 4), (5, 8), (2**64 - 1, 8)])
def test_packet_numbers_are_read_by_their_length(number: int, size: int) -> None:
    sa = {"an": 0, "pn": netlink.xpn(number) if size == 8 else number}
    message = netlink.request(netlink.MACSEC_CMD_UPD_TXSA, 4, sa=sa)
    message.encode()
    read = netlink.macsecmsg(message.data)
    read.decode()
    assert read.get_nested("MACSEC_ATTR_SA_CONFIG", "MACSEC_SA_ATTR_PN") == number


def test_the_link_kind() -> None:
    # ip link add link d0 ms2 type macsec port 1 cipher gcm-aes-256 encrypt on replay on window 32
    values = [
        ("PORT", 1), ("ENCRYPT", 1), ("CIPHER_SUITE", netlink.MACSEC_CIPHER_ID_GCM_AES_256), ("WINDOW", 32),
        ("REPLAY_PROTECT", 1),
    ]  # fmt: skip
    message = ifinfmsg()
    data = {"attrs": [(f"IFLA_MACSEC_{name}", value) for name, value in values]}
    info = {"attrs": [("IFLA_INFO_KIND", "macsec"), ("IFLA_INFO_DATA", data)]}
    message["attrs"] = [("IFLA_LINKINFO", info)]
    sent = "060002000001000005000700010000000c0004000200000100c28000080005002000000005000c0001000000"
    assert nla("0200", sent) in body(message)
