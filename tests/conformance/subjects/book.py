"""Tools to write vectors with."""

from __future__ import annotations

from collections.abc import Sequence

from scapy.all import Ether, Packet, raw

from dinnet.dataplane.codec import Codec
from dinnet.dataplane.conformance.text import EntityText
from dinnet.dataplane.conformance.vectors import Step, Subject, Vector
from dinnet.dataplane.entity import Entity, Ternary, mac
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.tables import ForwardL2, ToPort

A, B, C, ROUTER = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c", "02:00:00:00:00:fe"
NO_PORT = 511
_TEXT = EntityText(Codec(dinnet_program()))


class Book:
    """The vectors of one subject. Each has addresses of its own, so that no flow of one goes on in another."""

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title
        self.vectors: list[Vector] = []

    @property
    def v4(self) -> tuple[str, str]:
        place = len(self.vectors)
        return f"10.{self.number}.{place}.1", f"10.{self.number}.{place}.2"

    @property
    def v6(self) -> tuple[str, str]:
        place = f"2001:db8:{self.number:x}:{len(self.vectors):x}"
        return f"{place}::1", f"{place}::2"

    def add(self, name: str, entities: Sequence[Entity], *steps: Step) -> None:
        assert name not in {vector.name for vector in self.vectors}, name
        tables = tuple(_TEXT.dump(entity) for entity in entities)
        self.vectors.append(Vector(name, tables, steps))

    def subject(self) -> Subject:
        return Subject(self.title, tuple(self.vectors))


def ether(*layers: Packet, src: str = A, dst: str = B) -> Packet:
    packet = Ether(src=src, dst=dst)
    for layer in layers:
        packet /= layer
    return packet


def send(
    packet: Packet | bytes,
    port: int = 1,
    *,
    repeat: int = 1,
    at_once: bool = False,
    pause_ms: int = 0,
    summary: str = "",
) -> Step:
    summary = summary or packet.summary()
    return Step(port, raw(packet), summary, repeat=repeat, at_once=at_once, pause_ms=pause_ms)


def out(packet: Packet, port: int) -> Step:
    """A packet of the controller's."""
    return Step(port, raw(packet), packet.summary(), is_packet_out=True)


def station(name: str = B, port: int = 2, vlan: int = 0) -> ForwardL2:
    return ForwardL2(vlan=vlan, dst=mac(name), action=ToPort(port))


def exactly(value: int, bits: int) -> Ternary:
    return Ternary(value, (1 << bits) - 1)
