"""Where the embedded switch sends packets, and what it does to them on the way: judged by scapy and by hand."""

from __future__ import annotations

from collections.abc import Iterator

import capturekit as kit
import pytest
import switchkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switchkit import IN, OTHER, OUT

from dinnet.switch.bpfobject import Ran
from dinnet.switch.contract import Action, Drop, Forward, Parsed

pytestmark = [switchkit.needs_bpf, pytest.mark.root]
SHOT, REDIRECT, UNSPEC = 2, 7, 0xFFFFFFFF
SRC, DST = 0x02AA00000001, 0x02AA00000002
ROUTE = Forward(Action.ROUTE, OUT, SRC, DST)
STATION = 0x020000000002  # where capturekit's frames go


@pytest.fixture(scope="module")
def module_bench() -> Iterator[switchkit.Bench]:
    bench = switchkit.Bench()
    yield bench
    bench.close()


@pytest.fixture
def bench(module_bench: switchkit.Bench) -> switchkit.Bench:
    module_bench.reset()
    return module_bench


def udp4(dst: str = "10.0.0.2", **options: object) -> bytes:
    from scapy.all import IP, UDP, Ether, Raw

    return bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / IP(src="10.0.0.1", dst=dst, **options)
                 / UDP(sport=1000, dport=80) / Raw(b"hello"))  # fmt: skip


def udp6(dst: str = "2001:db8::2", **options: object) -> bytes:
    from scapy.all import UDP, Ether, IPv6, Raw

    return bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
                 / IPv6(src="2001:db8::1", dst=dst, **options) / UDP(sport=1000, dport=80) / Raw(b"hello"))  # fmt: skip


def way(ran: Ran) -> tuple[int, int]:
    """Action and port."""
    return ran.skb.cb[0] & 0xFF, ran.skb.cb[0] >> 8 & 0xFFFF


def dropped(ran: Ran) -> int:
    assert ran.answer == SHOT
    return int(ran.skb.cb[0] >> 24)


def test_interface_that_is_no_port_is_passed_by(bench: switchkit.Bench) -> None:
    bench.datapath.remove_port(IN)
    frame = udp4()
    ran = bench.run(frame)
    assert ran.answer == UNSPEC
    assert ran.packet == frame


def test_longest_prefix_wins(bench: switchkit.Bench) -> None:
    for prefix, port in (("0.0.0.0/0", OTHER), ("10.0.0.0/8", OUT), ("10.0.0.128/25", OTHER), ("10.0.0.200/32", OUT)):
        assert bench.datapath.forward(prefix, Forward(Action.ROUTE, port, SRC, DST)) == 0
    for prefix, port in (("::/0", OTHER), ("2001:db8::/32", OUT), ("2001:db8::80/121", OTHER)):
        bench.datapath.forward(prefix, Forward(Action.ROUTE, port, SRC, DST))
    for dst, port in (("10.1.2.3", OUT), ("10.0.0.129", OTHER), ("10.0.0.200", OUT), ("11.0.0.1", OTHER)):
        ran = bench.run(udp4(dst))
        assert ran.answer == REDIRECT
        assert way(ran) == (Action.ROUTE, port)
    for dst, port in (("2001:db8::2", OUT), ("2001:db8::ff", OTHER), ("fd00::1", OTHER)):
        assert way(bench.run(udp6(dst))) == (Action.ROUTE, port)
    assert bench.datapath.remove_forward("10.0.0.200/32")
    assert way(bench.run(udp4("10.0.0.200"))) == (Action.ROUTE, OTHER)


def test_route_rewrites_stations_and_takes_a_hop(bench: switchkit.Bench) -> None:
    from scapy.all import Ether

    bench.datapath.forward("10.0.0.0/8", ROUTE)
    bench.datapath.forward("2001:db8::/32", ROUTE)
    before, after = Ether(udp4(ttl=9)), Ether(bench.run(udp4(ttl=9)).packet)
    before.src, before.dst, before["IP"].ttl, before["IP"].chksum = "02:aa:00:00:00:01", "02:aa:00:00:00:02", 8, None
    assert bytes(after) == bytes(before)
    before, after = Ether(udp6(hlim=9, fl=0xABCDE)), Ether(bench.run(udp6(hlim=9, fl=0xABCDE)).packet)
    before.src, before.dst, before["IPv6"].hlim = "02:aa:00:00:00:01", "02:aa:00:00:00:02", 8
    assert bytes(after) == bytes(before)


@pytest.mark.parametrize("ttl", [0, 1])
def test_last_hop_is_dropped_and_counted(bench: switchkit.Bench, ttl: int) -> None:
    bench.datapath.forward("0.0.0.0/0", ROUTE)
    bench.datapath.forward("::/0", ROUTE)
    assert dropped(bench.run(udp4(ttl=ttl))) == Drop.TTL
    assert dropped(bench.run(udp6(hlim=ttl))) == Drop.TTL
    assert bench.datapath.drops()[Drop.TTL].packets == 2


def test_stations_by_vlan_where_there_is_no_route(bench: switchkit.Bench) -> None:
    bench.datapath.station(0, STATION, Forward(Action.PORT, OUT))
    bench.datapath.station(7, STATION, Forward(Action.PORT, OTHER))
    packet = kit.ipv4(kit.udp(1, 2), 17)
    assert way(bench.run(kit.ethernet(packet))) == (Action.PORT, OUT)
    tagged = kit.ethernet(packet, tags=[(kit.VLAN, 0xE007)])
    ran = bench.run(tagged)
    assert way(ran) == (Action.PORT, OTHER)
    assert ran.packet == tagged  # a checksum of 0 stays wrong, a DSCP of 0 stays 0
    assert dropped(bench.run(kit.ethernet(packet, tags=[(kit.VLAN, 8)]))) == Drop.NO_ROUTE
    bench.datapath.forward("10.0.0.2/32", Forward(Action.DROP))
    assert dropped(bench.run(kit.ethernet(packet))) == Drop.FORWARD
    arp = kit.ethernet(bytes(46), 0x0806)
    ran = bench.run(arp)
    assert (way(ran), ran.packet) == ((Action.PORT, OUT), arp)
    assert bench.datapath.parsed()[Parsed.NOT_IP].packets == 1


def test_default_way_is_for_unknown_stations(bench: switchkit.Bench) -> None:
    frame = kit.ethernet(bytes(46), 0x0806)
    assert dropped(bench.run(frame)) == Drop.NO_ROUTE
    bench.datapath.set_default_forward(Forward(Action.PORT, OTHER))
    assert way(bench.run(frame)) == (Action.PORT, OTHER)
    bench.datapath.set_default_forward(Forward(Action.FLOOD, 5))
    assert dropped(bench.run(frame)) == Drop.NO_ROUTE  # there is no such group
    bench.datapath.set_group(5, [IN])  # nobody but the sender
    assert bench.run(frame).answer == SHOT
    bench.datapath.set_default_forward(None)
    assert dropped(bench.run(frame)) == Drop.NO_ROUTE
    assert bench.datapath.drops()[Drop.NO_ROUTE].packets == 3


def test_port_without_an_interface_drops(bench: switchkit.Bench) -> None:
    bench.datapath.set_default_forward(Forward(Action.PORT, 77))
    assert dropped(bench.run(udp4())) == Drop.NO_ROUTE


def test_packet_for_the_controller(bench: switchkit.Bench) -> None:
    bench.datapath.forward("10.0.0.0/8", Forward(Action.CONTROLLER))
    frames = [udp4(), udp4(tos=0xB9), kit.ethernet(kit.ipv4(kit.udp(1, 2, bytes(3000)), 17))]
    for frame in frames:
        assert bench.run(frame).answer == SHOT
    bench.ring.poll()
    assert [event.ingress_port for event in bench.packets] == [IN] * 3
    assert [event.length for event in bench.packets] == [len(frame) for frame in frames]
    assert bench.packets[0].data == frames[0]
    assert bench.packets[2].data == frames[2][:2048]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tos=st.integers(0, 255), dscp=st.integers(0, 63), trusted=st.booleans(), ident=st.integers(0, 65535),
    ttl=st.integers(2, 255), options=st.sampled_from((0, 4, 40)), routed=st.booleans(),
)  # fmt: skip
def test_dscp_and_checksum(
    module_bench: switchkit.Bench, tos: int, dscp: int, trusted: bool, ident: int, ttl: int, options: int, routed: bool
) -> None:
    """The checksum is what scapy computes over the changed header; ECN stays."""
    from scapy.all import IP, Ether, IPOption_NOP

    bench = module_bench
    bench.reset()
    bench.configure(trusted=trusted)
    bench.datapath.set_mark_to_dscp(tos >> 4 if trusted else 0, tos >> 2 & 3 if trusted else 0, dscp)
    if routed:
        bench.datapath.forward("10.0.0.0/8", ROUTE)
    else:
        bench.datapath.station(0, STATION, Forward(Action.PORT, OUT))
    frame = udp4(tos=tos, id=ident, ttl=ttl, options=[IPOption_NOP()] * options)
    after = Ether(bench.run(frame).packet)
    wanted = Ether(frame)
    wanted[IP].tos = dscp << 2 | tos & 3
    wanted[IP].chksum = None
    if routed:
        wanted[IP].ttl, wanted.src, wanted.dst = ttl - 1, "02:aa:00:00:00:01", "02:aa:00:00:00:02"
    assert bytes(after) == bytes(wanted)


def test_traffic_class_behind_tags_and_before_extension_headers(bench: switchkit.Bench) -> None:
    """SRv6 and other extension headers, and the flow label, are as they were; a UDP checksum of 0 stays 0."""
    bench.datapath.station(100, STATION, Forward(Action.PORT, OUT))
    bench.datapath.set_mark_to_dscp(0, 0, 46)
    inner = kit.ip6_options(43) + kit.ip6_routing(17, ["2001:db8::9", "2001:db8::2"]) + kit.udp(5, 6, b"x")
    packet = kit.ipv6(inner, 0, label=0xABCDE)
    tags = [(kit.QINQ, 100), (kit.VLAN, 7)]
    for ecn in range(4):
        sent = bytes([0x60, ecn << 4 | 0xA]) + packet[2:]
        marked = bytes([0x60 | 46 >> 2, (46 & 3) << 6 | ecn << 4 | 0xA]) + packet[2:]
        assert bench.run(kit.ethernet(sent, tags=tags)).packet == kit.ethernet(marked, tags=tags)


MALFORMED = {
    "cut Ethernet tag": kit.ethernet(b"", kit.VLAN),
    # Behind a tag, for the kernel itself refuses to run a program on such a packet without one.
    "cut IPv4 header": kit.ethernet(kit.ipv4(b"", 17)[:19], kit.IPV4, [(kit.VLAN, 1)]),
    "IPv4 header of 16 bytes": kit.ethernet(kit.ipv4(kit.udp(1, 2), 17, ihl=4)),
    "IPv4 of version 5": kit.ethernet(kit.ipv4(kit.udp(1, 2), 17, version=5), kit.IPV4),
    "IPv4 shorter than its header": kit.ethernet(kit.ipv4(kit.udp(1, 2), 17, total=19)),
    "IPv4 options cut": kit.ethernet(kit.ipv4(b"", 17, ihl=15, total=60)),
    "TCP header that IP cuts": kit.ethernet(kit.ipv4(kit.tcp(1, 2), 6, total=39)),
    "TCP header of 16 bytes": kit.ethernet(kit.ipv4(kit.tcp(1, 2, data_offset=4), 6)),
    "TCP options beyond the packet": kit.ethernet(kit.ipv4(kit.tcp(1, 2, data_offset=15), 6)),
    "cut TCP header": kit.ethernet(kit.ipv4(kit.tcp(1, 2), 6))[:50],
    "cut UDP header": kit.ethernet(kit.ipv4(kit.udp(1, 2), 17, total=27)),
    "cut IPv6 header": kit.ethernet(kit.ipv6(b"", 17)[:39], kit.IPV6, [(kit.VLAN, 1)]),
    "IPv6 of version 4": kit.ethernet(kit.ipv6(kit.udp(1, 2), 17, version=4), kit.IPV6),
    "extension header beyond the packet": kit.ethernet(kit.ipv6(bytes([17, 200]) + bytes(6), 60)),
    "fragment header beyond the packet": kit.ethernet(kit.ipv6(bytes(4), 44)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_packets_are_dropped_and_counted(bench: switchkit.Bench, name: str) -> None:
    bench.datapath.set_default_forward(Forward(Action.PORT, OUT))
    frame = MALFORMED[name]
    assert dropped(bench.run(frame)) == Drop.MALFORMED
    assert bench.datapath.parsed()[Parsed.MALFORMED] == (1, len(frame))
    assert bench.datapath.drops()[Drop.MALFORMED] == (1, len(frame))
    assert list(bench.datapath.flow_table()) == []
