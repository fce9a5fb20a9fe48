"""Tunnels: the inner flow by default, the outer one when asked."""

from __future__ import annotations

import capturekit as kit
import pytest

INNER4 = kit.ipv4(kit.tcp(1000, 80, kit.ACK, b"hello"), kit.TCP, "172.16.0.1", "172.16.0.2")
INNER6 = kit.ipv6(kit.tcp(1000, 80, kit.ACK, b"hello"), kit.TCP, "fd00::1", "fd00::2", label=0x777)
TUPLE4 = ("172.16.0.1", 1000, "172.16.0.2", 80, 6)
TUPLE6 = ("fd00::1", 1000, "fd00::2", 80, 6)
PACKETS = {4: (INNER4, TUPLE4, 45), 6: (INNER6, TUPLE6, 65)}

ENDS = [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")]


def tunnelled(kind: str, version: int) -> tuple[bytes, int, int, int]:
    """(payload of the outer IP packet, its protocol, the outer destination port, the tunnel's ID)."""
    inner, ethertype = PACKETS[version][0], kit.IPV4 if version == 4 else kit.IPV6
    frame = kit.ethernet(inner)
    match kind:
        case "ipip":
            return inner, kit.IPIP if version == 4 else kit.SIX_IN_FOUR, 0, 0
        case "gre":
            return kit.gre(inner, ethertype), kit.GRE, 0, 0
        case "gre with all options":
            return kit.gre(inner, ethertype, checksum=True, key=5, sequence=6), kit.GRE, 0, 0
        case "gre key":
            return kit.gre(inner, ethertype, key=0x45000000), kit.GRE, 0, 0
        case "gre ethernet":
            return kit.gre(frame, kit.TEB), kit.GRE, 0, 0
        case "vxlan":
            return kit.udp(44_444, 4789, kit.vxlan(frame, 0xABCDEF)), kit.UDP, 4789, 0xABCDEF
        case "geneve":
            return kit.udp(44_444, 6081, kit.geneve(frame, 0x123456)), kit.UDP, 6081, 0x123456
        case "geneve with options":
            return kit.udp(44_444, 6081, kit.geneve(frame, 99, option_words=5)), kit.UDP, 6081, 99
        case "geneve ip":
            return kit.udp(44_444, 6081, kit.geneve(inner, 7, ethertype)), kit.UDP, 6081, 7
        case "gtp":
            return kit.udp(2152, 2152, kit.gtpu(inner, 3)), kit.UDP, 2152, 0
        case "gtp sequence":
            return kit.udp(2152, 2152, kit.gtpu(inner, 3, sequence=True)), kit.UDP, 2152, 0
        case "gtp extension":
            return kit.udp(2152, 2152, kit.gtpu(inner, 3, sequence=True, extension=True)), kit.UDP, 2152, 0
    raise AssertionError(kind)


KINDS = [
    "ipip",
    "gre",
    "gre with all options",
    "gre key",
    "gre ethernet",
    "vxlan",
    "geneve",
    "geneve with options",
    "geneve ip",
    "gtp",
    "gtp sequence",
    "gtp extension",
]


@pytest.mark.parametrize("version", [4, 6], ids=["inner v4", "inner v6"])
@pytest.mark.parametrize(("src", "dst"), ENDS, ids=["outer v4", "outer v6"])
@pytest.mark.parametrize("kind", KINDS)
def test_tunnel(kind: str, src: str, dst: str, version: int) -> None:
    payload, proto, port, tunnel_id = tunnelled(kind, version)
    _, inner_tuple, inner_bytes = PACKETS[version]
    data = kit.pcap([kit.at(0, kit.ethernet(kit.ip(payload, proto, src, dst)))])

    inner = kit.read(data, tunnel="inner")
    assert inner.tuples() == [inner_tuple]
    row = inner.packets[0]
    assert (row["ip_bytes"], row["payload_bytes"], row["tunnel_id"]) == (inner_bytes, 5, tunnel_id)
    assert row["ip_version"] == version
    assert inner.stats.flow_packets == 1

    outer = kit.read(data, tunnel="outer")
    row = outer.packets[0]
    assert kit.five_tuple(row) == (src, int(row["sport"]), dst, port, proto)
    assert row["tunnel_id"] == 0
    assert row["ip_bytes"] == len(payload) + (40 if ":" in src else 20)


def test_same_inner_flow_in_two_networks_has_two_numbers() -> None:
    frames = [
        kit.at(n, kit.ethernet(kit.ipv4(kit.udp(1, 4789, kit.vxlan(kit.ethernet(INNER4), vni)), kit.UDP)))
        for n, vni in enumerate([10, 20, 10])
    ]
    reading = kit.read(kit.pcap(frames))
    assert set(reading.tuples()) == {TUPLE4}
    assert reading.packets["tunnel_id"].tolist() == [10, 20, 10]


def test_tunnel_in_a_tunnel_is_opened_to_the_innermost_flow() -> None:
    middle = kit.ipv4(kit.gre(INNER6, kit.IPV6), kit.GRE, "192.0.2.1", "192.0.2.2")
    outer = kit.ipv4(kit.udp(9, 4789, kit.vxlan(kit.ethernet(middle), 5)), kit.UDP)
    data = kit.pcap([kit.at(0, kit.ethernet(outer))])
    assert kit.read(data).tuples() == [TUPLE6]
    assert kit.read(data, tunnel="outer").tuples() == [("10.0.0.1", 9, "10.0.0.2", 4789, 17)]


def test_vlan_tag_inside_vxlan_is_passed() -> None:
    frame = kit.ethernet(INNER4, tags=[(kit.VLAN, 12)])
    data = kit.pcap([kit.at(0, kit.ethernet(kit.ipv4(kit.udp(9, 4789, kit.vxlan(frame, 5)), kit.UDP)))])
    assert kit.read(data).tuples() == [TUPLE4]


def test_tunnel_behind_ipv6_extension_headers() -> None:
    packet = kit.ipv6(kit.ip6_options(kit.IPIP) + INNER4, kit.DESTINATION)
    assert kit.read(kit.pcap([kit.at(0, kit.ethernet(packet))])).tuples() == [TUPLE4]


@pytest.mark.parametrize(
    ("payload", "proto", "port"),
    [
        (kit.udp(9, 4789, kit.vxlan(kit.ethernet(bytes(28), 0x0806), 5)), kit.UDP, 4789),
        (kit.udp(9, 4789, bytes(30)), kit.UDP, 4789),
        (kit.udp(9, 4789, b""), kit.UDP, 4789),
        (kit.udp(9, 6081, b"\xff" * 60), kit.UDP, 6081),
        (kit.udp(9, 2152, b"\x32\x01\x00\x04" + bytes(12)), kit.UDP, 2152),
        (kit.gre(b"\x42\x42", 0x0007), kit.GRE, 0),
        (kit.gre(bytes(20), 0x880B), kit.GRE, 0),
    ],
    ids=["ARP in VXLAN", "no VXLAN flag", "empty UDP", "no Geneve", "GTP echo", "other GRE", "PPTP GRE"],
)
def test_tunnel_without_an_inner_ip_packet_counts_as_the_outer_flow(payload: bytes, proto: int, port: int) -> None:
    reading = kit.read(kit.pcap([kit.at(0, kit.ethernet(kit.ipv4(payload, proto)))]))
    assert reading.stats.frames == 1
    assert [(t[0], t[2], t[3], t[4]) for t in reading.tuples()] == [("10.0.0.1", "10.0.0.2", port, proto)]


def test_non_first_fragment_of_a_tunnel_packet_is_not_opened() -> None:
    packet = kit.ipv4(INNER4, kit.IPIP, ident=3, offset=800)
    reading = kit.read(kit.pcap([kit.at(0, kit.ethernet(packet))]))
    assert reading.tuples() == [("10.0.0.1", 0, "10.0.0.2", 0, 4)]


def test_endless_nesting_is_bounded() -> None:
    packet = INNER4
    for _ in range(200):
        packet = kit.ipv4(packet, kit.IPIP)
    reading = kit.read(kit.pcap([kit.at(0, kit.ethernet(packet))]))
    assert reading.stats.frames == 1
    assert reading.stats.flow_packets + reading.stats.malformed == 1


def test_every_cut_of_a_tunnel_packet_is_counted_once() -> None:
    for kind in KINDS:
        payload, proto, _, _ = tunnelled(kind, 6)
        whole = kit.ethernet(kit.ipv4(payload, proto))
        frames = [kit.at(n, whole[:n], len(whole)) for n in range(1, len(whole) + 1)]
        stats = kit.read(kit.pcap(frames)).stats
        assert stats.frames == len(frames)
        assert stats.flow_packets + stats.not_ip + stats.malformed == len(frames)
