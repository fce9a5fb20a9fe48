"""What lies below IP: link types, VLAN tags, MPLS and PPPoE."""

from __future__ import annotations

from collections.abc import Callable

import capturekit as kit
import numpy as np
import pytest

V4 = kit.ipv4(kit.tcp(1000, 80, kit.ACK, b"hello"), kit.TCP)
V6 = kit.ipv6(kit.tcp(1000, 80, kit.ACK, b"hello"), kit.TCP, label=0xABCDE)
TUPLE4 = ("10.0.0.1", 1000, "10.0.0.2", 80, 6)
TUPLE6 = ("2001:db8::1", 1000, "2001:db8::2", 80, 6)


def read_one(data: bytes, link: int = 1) -> np.void:
    reading = kit.read(kit.pcap([kit.at(0, data)], link=link))
    assert len(reading.packets) == 1, reading.stats
    return reading.packets[0]


def check(row: np.void, version: int) -> None:
    assert kit.five_tuple(row) == (TUPLE4 if version == 4 else TUPLE6)
    assert row["ip_version"] == version
    assert row["payload_bytes"] == 5
    assert row["ip_bytes"] == (45 if version == 4 else 65)
    assert row["flow_label"] == (0 if version == 4 else 0xABCDE)
    assert row["flags"] == kit.ACK
    assert row["marks"] == 1
    assert row["tunnel_id"] == 0


BY_VERSION = pytest.mark.parametrize(("packet", "version"), [(V4, 4), (V6, 6)], ids=["v4", "v6"])


@BY_VERSION
def test_ethernet(packet: bytes, version: int) -> None:
    row = read_one(kit.ethernet(packet))
    check(row, version)
    assert row["vlan"] == row["inner_vlan"] == 0


@BY_VERSION
@pytest.mark.parametrize("link", [12, 14, 101])
def test_raw_ip_takes_the_version_from_the_packet(link: int, packet: bytes, version: int) -> None:
    check(read_one(packet, link), version)


def test_raw_ip_of_one_version() -> None:
    check(read_one(V4, 228), 4)
    check(read_one(V6, 229), 6)


@BY_VERSION
def test_linux_cooked(packet: bytes, version: int) -> None:
    check(read_one(kit.sll(packet), 113), version)


@BY_VERSION
def test_linux_cooked_v2(packet: bytes, version: int) -> None:
    check(read_one(kit.sll2(packet), 276), version)


@pytest.mark.parametrize(("build", "link"), [(kit.sll, 113), (kit.sll2, 276)])
def test_linux_cooked_with_a_vlan_tag(build: Callable[[bytes, int], bytes], link: int) -> None:
    row = read_one(build(b"\x00\x2a\x08\x00" + V4, kit.VLAN), link)
    check(row, 4)
    assert row["vlan"] == 42


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("link", [0, 108], ids=["NULL", "LOOP"])
@pytest.mark.parametrize(
    ("family", "packet", "version"),
    [(2, V4, 4), (24, V6, 6), (28, V6, 6), (30, V6, 6), (10, V6, 6)],
    ids=["AF_INET", "BSD", "FreeBSD", "Darwin", "Linux"],
)
def test_null_and_loop(family: int, packet: bytes, version: int, link: int, order: str) -> None:
    check(read_one(kit.null(packet, family, order), link), version)


def test_null_with_another_family_is_not_ip() -> None:
    reading = kit.read(kit.pcap([kit.at(0, kit.null(V4, 7, "<"))], link=0))
    assert len(reading.packets) == 0
    assert reading.stats.not_ip == 1


@BY_VERSION
@pytest.mark.parametrize("framing", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_ppp(framing: bool, compressed: bool, packet: bytes, version: int) -> None:
    check(read_one(kit.ppp(packet, framing, compressed), 9), version)


@BY_VERSION
@pytest.mark.parametrize("tpid", [kit.VLAN, kit.QINQ, kit.OLD_QINQ])
def test_one_tag(tpid: int, packet: bytes, version: int) -> None:
    row = read_one(kit.ethernet(packet, tags=[(tpid, 0xE000 | 4094)]))  # priority bits are no part of the ID
    check(row, version)
    assert (row["vlan"], row["inner_vlan"]) == (4094, 0)


@BY_VERSION
@pytest.mark.parametrize("outer", [kit.QINQ, kit.VLAN, kit.OLD_QINQ])
def test_two_tags(outer: int, packet: bytes, version: int) -> None:
    row = read_one(kit.ethernet(packet, tags=[(outer, 100), (kit.VLAN, 200)]))
    check(row, version)
    assert (row["vlan"], row["inner_vlan"]) == (100, 200)


def test_three_tags_are_passed_over() -> None:
    row = read_one(kit.ethernet(V4, tags=[(kit.QINQ, 100), (kit.VLAN, 200), (kit.VLAN, 300)]))
    check(row, 4)
    assert row["vlan"] == 100


def test_priority_tag_is_no_vlan() -> None:
    row = read_one(kit.ethernet(V4, tags=[(kit.VLAN, 0xA000)]))
    check(row, 4)
    assert row["vlan"] == 0


@BY_VERSION
@pytest.mark.parametrize("ethertype", [kit.MPLS, kit.MPLS_MULTICAST])
@pytest.mark.parametrize("labels", [[16], [16, 17], [16, 17, 18, 19, 20]])
def test_mpls(labels: list[int], ethertype: int, packet: bytes, version: int) -> None:
    check(read_one(kit.ethernet(kit.mpls(packet, labels), ethertype)), version)


@BY_VERSION
def test_vlan_and_mpls_mixed(packet: bytes, version: int) -> None:
    row = read_one(kit.ethernet(kit.mpls(packet, [30, 31]), kit.MPLS, tags=[(kit.QINQ, 7), (kit.VLAN, 8)]))
    check(row, version)
    assert (row["vlan"], row["inner_vlan"]) == (7, 8)


@BY_VERSION
def test_pppoe(packet: bytes, version: int) -> None:
    check(read_one(kit.ethernet(kit.pppoe(packet), kit.PPPOE_SESSION)), version)


def test_pppoe_in_a_vlan() -> None:
    row = read_one(kit.ethernet(kit.pppoe(V6), kit.PPPOE_SESSION, tags=[(kit.VLAN, 35)]))
    check(row, 6)
    assert row["vlan"] == 35


def test_frames_without_ip_are_counted_as_such() -> None:
    arp = kit.ethernet(bytes(28), 0x0806)
    llc = kit.ethernet(b"\x42\x42\x03" + bytes(40), 43)  # a length, not a type: spanning tree
    discovery = kit.ethernet(bytes(20), 0x8863)
    lcp = kit.ethernet(b"\x11\x00\x00\x01\x00\x06\xc0\x21" + bytes(4), kit.PPPOE_SESSION)
    reading = kit.read(kit.pcap([kit.at(n, d) for n, d in enumerate([arp, llc, discovery, lcp, kit.ethernet(V4)])]))
    assert reading.stats.not_ip == 4
    assert reading.stats.flow_packets == 1
    assert reading.stats.malformed == 0
    assert reading.stats.frames == 5


@pytest.mark.parametrize("size", range(14))
def test_frame_shorter_than_its_link_header_is_no_flow(size: int) -> None:
    reading = kit.read(kit.pcap([kit.at(0, kit.ethernet(V4)[:size])]))
    assert len(reading.packets) == 0
    assert reading.stats.frames == 1
    assert reading.stats.not_ip + reading.stats.malformed == 1


@pytest.mark.parametrize(
    ("data", "link", "headers"),
    [
        (kit.ethernet(V4, tags=[(kit.QINQ, 1), (kit.VLAN, 2)]), 1, 22),
        (kit.ethernet(kit.mpls(V6, [1, 2, 3]), kit.MPLS), 1, 26),
        (kit.ethernet(kit.pppoe(V4), kit.PPPOE_SESSION), 1, 22),
        (kit.sll(V4), 113, 16),
        (kit.sll2(V6), 276, 20),
        (kit.null(V4, 2, "<"), 0, 4),
        (kit.ppp(V4), 9, 4),
        (V6, 101, 0),
    ],
    ids=["qinq", "mpls", "pppoe", "sll", "sll2", "null", "ppp", "raw"],
)
def test_every_cut_of_a_frame_is_counted_once_and_read_within_its_bytes(data: bytes, link: int, headers: int) -> None:
    frames = [kit.at(n, data[:n], len(data)) for n in range(1, len(data) + 1)]
    reading = kit.read(kit.pcap(frames, link=link))
    stats = reading.stats
    assert stats.frames == len(frames)
    assert stats.flow_packets + stats.not_ip + stats.malformed == len(frames)
    ip_header = 20 if b"\x0a\x00\x00\x01" in data else 40
    # From the whole IP and port headers on, every cut frame is the same flow with its true lengths.
    whole = reading.packets[-(len(data) - headers - ip_header - 20 + 1) :]
    assert len(whole) == 6
    assert len(set(map(kit.five_tuple, whole))) == 1
    assert set(whole["payload_bytes"].tolist()) == {5}
