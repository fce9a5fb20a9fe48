"""Where packets go: stations, groups, routes of both IPs, hops."""

from __future__ import annotations

import ipaddress

from scapy.all import ARP, IP, LLC, TCP, UDP, Dot1AD, Dot1Q, Ether, IPv6, Raw

from dinnet.dataplane.entity import DefaultEntry, Entity, Group, Lpm, mac, prefix
from dinnet.dataplane.tables import (
    Flood,
    ForwardDrop,
    ForwardL2,
    ForwardV4,
    ForwardV6,
    NoAction,
    Route,
    ToController,
    ToPort,
)

from .book import ROUTER, A, B, Book, C, ether, send, station

BROADCAST = "ff:ff:ff:ff:ff:ff"


def stations() -> Book:
    book = Book(1, "forward_l2: stations, VLANs, groups, the default")
    udp = UDP(sport=1000, dport=2000) / Raw(b"payload of some length")

    def ip() -> IP:
        return IP(src=book.v4[0], dst=book.v4[1])

    for port in range(1, 7):
        came_in = 2 if port == 1 else 1
        book.add(f"a known station on port {port}", [station(B, port)], send(ether(ip(), udp), came_in))
    book.add("a station on the port that the packet came from", [station(B, 1)], send(ether(ip(), udp)))
    book.add("an unknown station", [station(C)], send(ether(ip(), udp)))
    book.add("no tables at all", [], send(ether(ip(), udp)))
    book.add("a station to be dropped", [ForwardL2(vlan=0, dst=mac(B), action=ForwardDrop())], send(ether(ip(), udp)))
    book.add(
        "a station for the controller", [ForwardL2(vlan=0, dst=mac(B), action=ToController())], send(ether(ip(), udp))
    )
    for name, layers in {
        "ARP": (ARP(psrc="10.1.0.1", pdst="10.1.0.2"),),
        "an unknown EtherType": (Raw(bytes(50)),),
        "802.3 with LLC": (LLC(dsap=0x42, ssap=0x42, ctrl=3) / Raw(bytes(40)),),
    }.items():
        packet = ether(*layers)
        if name.startswith("an unknown"):
            packet.type = 0x88B5
        book.add(f"no IP packet: {name}", [station()], send(packet))
        book.add(f"no IP packet to an unknown station: {name}", [], send(packet))
        book.add(
            f"no IP packet for the controller: {name}",
            [ForwardL2(vlan=0, dst=mac(B), action=ToController())],
            send(packet),
        )
    for vlan in (1, 7, 4094, 4095):
        tagged = ether(Dot1Q(vlan=vlan, prio=vlan % 8), ip(), udp)
        both = [station(B, 2, 0), station(B, 3, vlan)]
        book.add(f"the station of VLAN {vlan}", both, send(tagged), send(ether(ip(), udp)))
    book.add("a priority tag is VLAN 0", [station()], send(ether(Dot1Q(vlan=0, prio=5), ip(), udp)))
    book.add(
        "the outer tag of two names the VLAN",
        [station(B, 3, 100), station(B, 4, 7)],
        send(ether(Dot1AD(vlan=100), Dot1Q(vlan=7), ip(), udp)),
        send(ether(Dot1Q(vlan=7), Dot1Q(vlan=100), ip(), udp)),
    )
    book.add("the station of another VLAN", [station(B, 3, 8)], send(ether(Dot1Q(vlan=7), ip(), udp)))

    for ports in ((2,), (2, 3), (1, 2, 3), (3, 4, 5, 6), (1,), (1, 2, 3, 4, 5, 6)):
        flooded = [Group(5, ports), ForwardL2(vlan=0, dst=mac(BROADCAST), action=Flood(5))]
        book.add(f"flood to ports {ports}", flooded, send(ether(ip(), udp, dst=BROADCAST)))
    flooded = [Group(4095, (1, 2)), ForwardL2(vlan=0, dst=mac(BROADCAST), action=Flood(4095))]
    book.add(
        "flood ARP from either side",
        flooded,
        send(ether(ARP(), dst=BROADCAST), 1),
        send(ether(ARP(), dst=BROADCAST), 2),
        send(ether(ARP(), dst=BROADCAST), 3),
    )
    book.add(
        "a group for each VLAN",
        [
            Group(1, (2, 3)),
            Group(2, (4, 5)),
            ForwardL2(vlan=1, dst=mac(BROADCAST), action=Flood(1)),
            ForwardL2(vlan=2, dst=mac(BROADCAST), action=Flood(2)),
        ],
        send(ether(Dot1Q(vlan=1), ip(), udp, dst=BROADCAST)),
        send(ether(Dot1Q(vlan=2), ip(), udp, dst=BROADCAST)),
    )
    defaults: dict[str, list[Entity]] = {
        "dropped": [DefaultEntry("forward_l2", ForwardDrop())],
        "the controller's": [DefaultEntry("forward_l2", ToController())],
        "sent to a port": [DefaultEntry("forward_l2", ToPort(4))],
        "flooded": [Group(9, (1, 2, 3, 4)), DefaultEntry("forward_l2", Flood(9))],
        "dropped by no rule": [DefaultEntry("forward_l2", NoAction())],
    }
    for name, entities in defaults.items():
        book.add(
            f"unknown stations are {name}",
            [station(C, 5), *entities],
            send(ether(ip(), udp)),
            send(ether(ip(), udp, dst=C)),
            send(ether(ARP(), dst=B)),
        )
    return book


def routes_v4() -> Book:
    book = Book(2, "forward_v4: prefixes of every length, hops, what a route changes")
    a, b = mac(ROUTER), mac(B)

    def packet(dst: str, **more: int) -> Ether:
        return ether(IP(src=book.v4[0], dst=dst, **more), TCP(sport=1000, dport=80, flags="A"), dst=ROUTER)

    for length in range(33):
        network = ipaddress.ip_network(f"172.{16 + length % 15}.85.171/{length}", strict=False)
        inside, beyond = network[-1], int(network[-1]) + 1
        steps = [send(packet(str(inside)))]
        if length > 0 and beyond < 1 << 32:
            steps.append(send(packet(str(ipaddress.IPv4Address(beyond)))))
        route = ForwardV4(dst=prefix(str(network)), action=Route(2, a, b))
        book.add(f"a prefix of {length} bits, its last address and the one behind", [route], *steps)
    nested: list[Entity] = [
        ForwardV4(dst=Lpm(0, 0), action=Route(2, a, b)),
        ForwardV4(dst=prefix("192.168.0.0/16"), action=Route(3, a, b)),
        ForwardV4(dst=prefix("192.168.7.0/24"), action=Route(4, a, b)),
        ForwardV4(dst=prefix("192.168.7.9/32"), action=ForwardDrop()),
        ForwardV4(dst=prefix("192.168.7.16/28"), action=ToController()),
    ]
    targets = ("192.168.7.9", "192.168.7.17", "192.168.7.1", "192.168.8.1", "192.0.2.1")
    book.add("the longest prefix counts", nested, *(send(packet(dst)) for dst in targets))
    book.add(
        "without a route its station counts",
        [station(ROUTER, 5), nested[1]],
        send(packet("192.0.2.1", ttl=1)),
        send(packet("192.168.1.1")),
    )
    book.add("a route to drop comes before a station", [station(ROUTER, 5), nested[3]], send(packet("192.168.7.9")))
    for ttl in (0, 1, 2, 3, 64, 128, 255):
        book.add(f"TTL {ttl}", nested[:1], send(packet("192.0.2.1", ttl=ttl)))
    book.add(
        "TTL 1 to the controller and to be dropped",
        nested,
        send(packet("192.168.7.17", ttl=1)),
        send(packet("192.168.7.9", ttl=1)),
    )
    for checksum in (0, 1, 0xFE, 0xFF, 0x100, 0x101, 0x7FFF, 0xFEFF, 0xFF00, 0xFFFE, 0xFFFF):
        book.add(
            f"a wrong checksum, {checksum:#06x}, stays as wrong as it was",
            nested[:1],
            send(packet("192.0.2.1", chksum=checksum)),
        )
    for port in (1, 6):
        book.add(
            f"a route to port {port}",
            [ForwardV4(dst=Lpm(0, 0), action=Route(port, 0xFFFFFFFFFFFF, 0))],
            send(packet("192.0.2.1")),
        )
    book.add(
        "routes look at IPv4 only",
        nested[:1],
        send(ether(IPv6(src=book.v6[0], dst=book.v6[1]), UDP(), dst=A)),
        send(ether(ARP(), dst=A)),
    )
    book.add(
        "a route in a VLAN keeps the tag",
        nested[:1],
        send(ether(Dot1Q(vlan=9, prio=3), IP(src=book.v4[0], dst="192.0.2.1"), UDP(), dst=ROUTER)),
    )
    book.add(
        "a route for a later fragment",
        nested[:1],
        send(ether(IP(src=book.v4[0], dst="192.0.2.1", frag=185, flags="MF"), Raw(bytes(64)), dst=ROUTER)),
    )
    return book


def routes_v6() -> Book:
    book = Book(3, "forward_v6: prefixes of many lengths, hops")
    a, b = mac(ROUTER), mac(B)

    def packet(dst: str, **more: int) -> Ether:
        return ether(IPv6(src=book.v6[0], dst=dst, **more), TCP(sport=1000, dport=80, flags="A"), dst=ROUTER)

    for length in (0, 1, 3, 7, 8, 16, 31, 32, 33, 47, 48, 56, 60, 63, 64, 65, 80, 96, 112, 120, 126, 127, 128):
        network = ipaddress.ip_network(f"2001:db8:aaaa:5555:a5a5:5a5a:ffff:8001/{length}", strict=False)
        steps = [send(packet(str(network[-1])))]
        if length:
            steps.append(send(packet(str(ipaddress.IPv6Address(int(network[-1]) + 1)))))
        book.add(
            f"a prefix of {length} bits, its last address and the one behind",
            [ForwardV6(dst=prefix(str(network)), action=Route(2, a, b))],
            *steps,
        )
    nested: list[Entity] = [
        ForwardV6(dst=Lpm(0, 0), action=Route(2, a, b)),
        ForwardV6(dst=prefix("fd00::/8"), action=Route(3, a, b)),
        ForwardV6(dst=prefix("fd00:1::/32"), action=Route(4, a, b)),
        ForwardV6(dst=prefix("fd00:1::9/128"), action=ForwardDrop()),
        ForwardV6(dst=prefix("fd00:1:2::/48"), action=ToController()),
    ]
    targets = ("fd00:1::9", "fd00:1:2::1", "fd00:1::1", "fd00:2::1", "2001:db8::1")
    book.add("the longest prefix counts", nested, *(send(packet(dst)) for dst in targets))
    for hops in (0, 1, 2, 64, 255):
        book.add(f"hop limit {hops}", nested[:1], send(packet("2001:db8::1", hlim=hops)))
    book.add("without a route its station counts", [station(ROUTER, 5), nested[1]], send(packet("2001:db8::1", hlim=1)))
    book.add("routes look at IPv6 only", nested[:1], send(ether(IP(src=book.v4[0], dst=book.v4[1]), UDP(), dst=A)))
    book.add("an IPv4-mapped destination is IPv6 to a route", nested[:1], send(packet("::ffff:10.0.0.1")))
    book.add("link-local and multicast", nested[:1], send(packet("fe80::1")), send(packet("ff02::1")))
    return book
