"""IPv4, IPv6 and the transport headers: lengths, fragments, extension headers, contradictions."""

from __future__ import annotations

import capturekit as kit
import pytest


def read(*packets: bytes) -> kit.Reading:
    """Reads packets in plain Ethernet frames, one millisecond apart."""
    return kit.read(kit.pcap([kit.at(1000 * n, kit.ethernet(p)) for n, p in enumerate(packets)]))


def read_one(packet: bytes):  # type: ignore[no-untyped-def]
    reading = read(packet)
    assert len(reading.packets) == 1, reading.stats
    return reading.packets[0]


# --- lengths ----------------------------------------------------------------------------------------------


def test_ethernet_padding_is_no_payload() -> None:
    ack = kit.ethernet(kit.ipv4(kit.tcp(1000, 80), kit.TCP))
    padded = ack.ljust(60, b"\0")
    assert (len(ack), len(padded)) == (54, 60)
    reading = kit.read(kit.pcap([kit.at(0, padded)]))
    assert reading.packets["payload_bytes"].tolist() == [0]
    assert reading.packets["ip_bytes"].tolist() == [40]
    assert reading.stats.frame_bytes == 60


def test_ethernet_padding_behind_ipv6_is_no_payload() -> None:
    frame = kit.ethernet(kit.ipv6(kit.udp(1, 2), kit.UDP)) + b"trailer of a switch"
    assert kit.read(kit.pcap([kit.at(0, frame)])).packets["payload_bytes"].tolist() == [0]


def test_ipv4_length_zero_of_segmentation_offload_means_the_wire_length() -> None:
    packet = kit.ipv4(kit.tcp(1000, 80, kit.ACK, bytes(3000)), kit.TCP, total=0)
    row = read_one(packet)
    assert (row["ip_bytes"], row["payload_bytes"]) == (3040, 3000)
    cut = kit.read(kit.pcap([kit.at(0, kit.ethernet(packet)[:60], 14 + 100_000)]))
    assert cut.packets["ip_bytes"].tolist() == [100_000]
    assert cut.packets["payload_bytes"].tolist() == [99_960]


def test_ipv6_length_zero_of_segmentation_offload_means_the_wire_length() -> None:
    row = read_one(kit.ipv6(kit.tcp(1000, 80, kit.ACK, bytes(3000)), kit.TCP, length=0))
    assert (row["ip_bytes"], row["payload_bytes"]) == (3060, 3000)


def test_ipv4_options_are_header() -> None:
    row = read_one(kit.ipv4(kit.udp(5, 6, b"abc"), kit.UDP, opts=b"\x94\x04\0\0" + b"\x01" * 36))
    assert (row["ip_bytes"], row["payload_bytes"], row["sport"], row["dport"]) == (71, 3, 5, 6)


def test_tcp_options_are_header() -> None:
    row = read_one(kit.ipv4(kit.tcp(5, 6, kit.SYN, b"ab", opts=b"\x01" * 40, seq=7, ack=9, window=65_535), kit.TCP))
    assert (row["ip_bytes"], row["payload_bytes"]) == (82, 2)
    assert (row["seq"], row["ack"], row["window"], row["flags"]) == (7, 9, 65_535, kit.SYN)


def test_window_is_as_sent_without_the_scale_of_the_handshake() -> None:
    scale = b"\x03\x03\x07\x00"  # window scale 7, end of options
    reading = read(
        kit.ipv4(kit.tcp(5, 6, kit.SYN, opts=scale, window=64_240), kit.TCP),
        kit.ipv4(kit.tcp(5, 6, kit.ACK, window=502), kit.TCP),
    )
    assert reading.packets["window"].tolist() == [64_240, 502]


def test_udp_payload() -> None:
    row = read_one(kit.ipv4(kit.udp(53, 1024, bytes(100)), kit.UDP))
    assert (row["ip_bytes"], row["payload_bytes"], row["flags"], row["window"], row["marks"]) == (128, 100, 0, 0, 0)


# --- protocols without TCP or UDP -------------------------------------------------------------------------


def test_icmp_is_a_flow_without_ports() -> None:
    reading = read(kit.ipv4(kit.icmp_echo(), kit.ICMP), kit.ipv6(kit.icmp_echo(), kit.ICMP6))
    assert reading.packets["sport"].tolist() == reading.packets["dport"].tolist() == [0, 0]
    assert reading.packets["proto"].tolist() == [1, 58]
    assert reading.packets["payload_bytes"].tolist() == [64, 64]  # all above IP


def test_packet_quoted_by_icmp_is_not_a_tunnel() -> None:
    quoted = kit.ipv4(kit.udp(5, 6, bytes(8)), kit.UDP, "192.0.2.1", "192.0.2.2")
    unreachable = b"\x03\x03" + bytes(6) + quoted
    assert kit.five_tuple(read_one(kit.ipv4(unreachable, kit.ICMP))) == ("10.0.0.1", 0, "10.0.0.2", 0, 1)


@pytest.mark.parametrize("proto", [2, 50, 89, 112, 255])
def test_other_protocols_are_flows_without_ports(proto: int) -> None:
    row = read_one(kit.ipv4(b"\x12\x34\x56\x78" * 5, proto))
    assert (row["sport"], row["dport"], row["proto"], row["payload_bytes"]) == (0, 0, proto, 20)


def test_sctp_has_ports() -> None:
    row = read_one(kit.ipv4(kit.sctp(2905, 2906), kit.SCTP))
    assert (row["sport"], row["dport"], row["proto"], row["flags"]) == (2905, 2906, 132, 0)


# --- IPv4 fragments ---------------------------------------------------------------------------------------

PORTS_LIKE = b"\x11\x11\x22\x22" * 50  # would read as ports 4369 and 8738


def fragments(ident: int = 77, dst: str = "10.0.0.2") -> list[bytes]:
    first = kit.ipv4(kit.udp(5000, 6000, bytes(192), length=592), kit.UDP, dst=dst, ident=ident, more=True)
    second = kit.ipv4(PORTS_LIKE, kit.UDP, dst=dst, ident=ident, offset=200, more=True)
    third = kit.ipv4(PORTS_LIKE, kit.UDP, dst=dst, ident=ident, offset=400)
    return [first, second, third]


def test_fragments_join_the_flow_of_the_first() -> None:
    reading = read(*fragments())
    assert set(reading.tuples()) == {("10.0.0.1", 5000, "10.0.0.2", 6000, 17)}
    assert reading.packets["ip_bytes"].tolist() == [220, 220, 220]
    assert reading.packets["payload_bytes"].tolist() == [192, 200, 200]
    assert reading.packets["marks"].tolist() == [0, 0, 0]


def test_fragments_of_tcp_have_no_tcp_header() -> None:
    first = kit.ipv4(kit.tcp(5000, 6000, kit.ACK, bytes(180), window=9), kit.TCP, ident=5, more=True)
    second = kit.ipv4(b"\xff" * 100, kit.TCP, ident=5, offset=200)
    rows = read(first, second).packets
    assert rows["dport"].tolist() == [6000, 6000]
    assert rows["payload_bytes"].tolist() == [180, 100]
    assert (rows["marks"] & 1).tolist() == [1, 0]
    assert rows["flags"].tolist() == [kit.ACK, 0]


def test_fragments_before_the_first_are_a_flow_with_ports_zero() -> None:
    first, second, third = fragments()
    reading = read(third, first, second)
    assert [t[1::2] for t in reading.tuples()] == [(0, 0), (5000, 6000), (5000, 6000)]
    assert (reading.packets["marks"] & 2).tolist() == [2, 0, 0]


def test_fragments_are_told_apart_by_identification_addresses_and_protocol() -> None:
    first = fragments(ident=1)[0]
    others = [
        fragments(ident=2)[1],
        fragments(ident=1, dst="10.0.0.3")[1],
        kit.ipv4(PORTS_LIKE, kit.TCP, ident=1, offset=200),
        kit.ipv4(PORTS_LIKE, kit.UDP, "10.0.0.2", "10.0.0.1", ident=1, offset=200),
    ]
    rows = read(first, *others).packets
    assert rows["sport"].tolist() == [5000, 0, 0, 0, 0]


def test_identification_used_again_belongs_to_the_newest_first_fragment() -> None:
    old = fragments()
    new = kit.ipv4(kit.udp(7000, 8000, bytes(192), length=592), kit.UDP, ident=77, more=True)
    rows = read(*old, new, old[1]).packets
    assert rows["dport"].tolist() == [6000, 6000, 6000, 8000, 8000]


def test_dont_fragment_bit_makes_no_fragment() -> None:
    packet = bytearray(kit.ipv4(kit.udp(5, 6), kit.UDP))
    packet[6] = 0x40
    assert read_one(bytes(packet))["dport"] == 6


# --- IPv6 -------------------------------------------------------------------------------------------------

INNER = kit.tcp(1000, 80, kit.ACK, b"hello")
HEADERS = {
    "hop-by-hop": (kit.HOP_BY_HOP, kit.ip6_options(kit.TCP)),
    "long hop-by-hop": (kit.HOP_BY_HOP, kit.ip6_options(kit.TCP, 3)),
    "destination": (kit.DESTINATION, kit.ip6_options(kit.TCP)),
    "routing": (kit.ROUTING, kit.ip6_routing(kit.TCP, ["2001:db8::9", "2001:db8::2"])),
    "authentication": (kit.AH, kit.ah(kit.TCP)),
    "atomic fragment": (kit.FRAGMENT, kit.ip6_fragment(kit.TCP, 0, False, 7)),
    "all": (
        kit.HOP_BY_HOP,
        kit.ip6_options(kit.DESTINATION)
        + kit.ip6_options(kit.ROUTING, 1)
        + kit.ip6_routing(kit.FRAGMENT, ["2001:db8::9"])
        + kit.ip6_fragment(kit.AH, 0, False, 7)
        + kit.ah(kit.DESTINATION, 20)
        + kit.ip6_options(kit.TCP),
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_ipv6_extension_headers_are_walked(name: str) -> None:
    next_header, headers = HEADERS[name]
    row = read_one(kit.ipv6(headers + INNER, next_header, label=0x12345))
    assert kit.five_tuple(row) == ("2001:db8::1", 1000, "2001:db8::2", 80, 6)
    assert row["payload_bytes"] == 5
    assert row["ip_bytes"] == 40 + len(headers) + 25
    assert row["flow_label"] == 0x12345


def test_ipv4_authentication_header_is_walked() -> None:
    row = read_one(kit.ipv4(kit.ah(kit.TCP) + INNER, kit.AH))
    assert kit.five_tuple(row) == ("10.0.0.1", 1000, "10.0.0.2", 80, 6)
    assert row["payload_bytes"] == 5


def test_ipv6_no_next_header_and_payload_beyond_it() -> None:
    row = read_one(kit.ipv6(b"\x11\x11\x22\x22", 59))
    assert (row["proto"], row["sport"], row["dport"]) == (59, 0, 0)


def test_ipv6_fragments_join_the_flow_of_the_first() -> None:
    first = kit.ipv6(kit.ip6_fragment(kit.UDP, 0, True, 9) + kit.udp(5000, 6000, bytes(192), 592), kit.FRAGMENT)
    second = kit.ipv6(kit.ip6_fragment(kit.UDP, 200, True, 9) + PORTS_LIKE, kit.FRAGMENT)
    third = kit.ipv6(kit.ip6_fragment(kit.UDP, 400, False, 9) + PORTS_LIKE, kit.FRAGMENT)
    other = kit.ipv6(kit.ip6_fragment(kit.UDP, 400, False, 10) + PORTS_LIKE, kit.FRAGMENT)
    rows = read(first, second, third, other).packets
    assert rows["dport"].tolist() == [6000, 6000, 6000, 0]
    assert rows["proto"].tolist() == [17, 17, 17, 17]
    assert rows["payload_bytes"].tolist() == [192, 200, 200, 200]


def test_ipv6_flow_label_is_twenty_bits_without_the_traffic_class() -> None:
    packet = bytearray(kit.ipv6(INNER, kit.TCP, label=0xFFFFF))
    packet[0] |= 0x0F
    packet[1] |= 0xF0
    assert read_one(bytes(packet))["flow_label"] == 0xFFFFF


# --- headers that contradict themselves -------------------------------------------------------------------

UDP4 = kit.udp(5, 6, b"abc")


@pytest.mark.parametrize(
    "frame",
    [
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, version=5), kit.IPV4),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, version=6), kit.IPV4),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, ihl=4)),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, ihl=0)),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, total=19)),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, total=1)),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP, ihl=15, total=31)),
        kit.ethernet(kit.ipv6(UDP4, kit.UDP, version=4), kit.IPV6),
        kit.ethernet(kit.ipv4(UDP4, kit.UDP))[: 14 + 19],
        kit.ethernet(kit.ipv6(UDP4, kit.UDP))[: 14 + 39],
    ],
    ids=[
        "version 5",
        "IPv6 version under IPv4 type",
        "ihl 4",
        "ihl 0",
        "length below header",
        "length 1",
        "header beyond length",
        "IPv4 version under IPv6 type",
        "cut IPv4 header",
        "cut IPv6 header",
    ],
)
def test_contradictory_ip_header_is_malformed(frame: bytes) -> None:
    reading = kit.read(kit.pcap([kit.at(0, frame), kit.at(1, kit.ethernet(kit.ipv4(UDP4, kit.UDP)))]))
    assert reading.stats.malformed == 1
    assert reading.stats.flow_packets == 1
    assert reading.stats.not_ip == 0
    assert reading.packets["dport"].tolist() == [6]


def test_ip_header_cut_by_the_snap_length_is_malformed() -> None:
    whole = kit.ethernet(kit.ipv4(UDP4, kit.UDP))
    reading = kit.read(kit.pcap([kit.at(0, whole[:20], len(whole))]))
    assert (reading.stats.malformed, reading.stats.flow_packets) == (1, 0)


@pytest.mark.parametrize("data_offset", [0, 4, 15])
def test_impossible_tcp_header_length_gives_no_negative_payload(data_offset: int) -> None:
    reading = read(kit.ipv4(kit.tcp(5, 6, data_offset=data_offset), kit.TCP))
    assert reading.stats.frames == 1
    assert all(0 <= p <= 20 for p in reading.packets["payload_bytes"].tolist())


def test_extension_headers_without_end_are_bounded() -> None:
    chain = b"".join(kit.ip6_options(kit.DESTINATION) for _ in range(4000))
    reading = read(kit.ipv6(chain, kit.DESTINATION))
    assert reading.stats.frames == 1


def test_loop_in_the_frame_cannot_hang_the_reader() -> None:
    zero_length_ah = bytes([kit.AH, 0]) + bytes(6)
    reading = read(kit.ipv6(zero_length_ah * 50, kit.AH))
    assert reading.stats.frames == 1
