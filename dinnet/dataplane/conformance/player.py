"""Play vectors on a switch and see what comes out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from dinnet.dataplane.conformance.text import EntityText, dump_records
from dinnet.dataplane.conformance.vectors import AS_SENT, Result, Seen, Step, Vector
from dinnet.dataplane.conformance.wires import Wires
from dinnet.dataplane.diff import Changes
from dinnet.dataplane.entity import Count, DefaultEntry, DigestConfig, Entity, MeterCell, Rates, TableEntry, mac
from dinnet.dataplane.session import Session
from dinnet.dataplane.tables import ForwardL2, Microflow, ToPort
from dinnet.errors import DinnetError

PORTS: Final = 8
#: Packets that show that those before them are through: in at one port, out at the other. Vectors use the ports below.
_MARK_IN, _MARK_OUT = 7, 8
_MARK_MAC: Final = mac("02:be:ac:00:00:99")
_MARK_HEAD: Final = _MARK_MAC.to_bytes(6, "big") + bytes.fromhex("02beac00000188b6")
_MARK_BYTES: Final = 60
INDEXED: Final = ("drops", "parsed", "marked", "exceeded", "flow_collisions", "int_events")
DIRECT: Final = ("slice_select", "microflow", "int_source")
#: Between any two packets: more than the 2 ms that make a burst of a flow's packets.
_SPACING_S: Final = 0.004
_AT_ONCE_S: Final = 0.0005
_PATIENCE_S: Final = 5.0
_AMPLE: Final = Rates(1 << 30, 1 << 30, 1 << 30, 1 << 30)


class Lost(DinnetError):
    """The switch does not forward at all."""


class Player:
    """Plays vectors one after the other on one switch."""

    def __init__(self, session: Session, wires: Wires, grace_s: float) -> None:
        """`grace_s`: how long to wait for what should not come."""
        self.session = session
        self.text = EntityText(session.codec)
        self._wires = wires
        self._grace_s = grace_s
        self._marks = 0
        self._digest = next(iter(session.program.info.digests.values()))

    async def begin(self) -> None:
        """Empty the switch: tables, flows, counters."""
        await self.session.replace_pipeline()
        base: list[Entity] = [
            ForwardL2(vlan=0, dst=_MARK_MAC, action=ToPort(_MARK_OUT)),
            DigestConfig(self._digest.name, max_list_size=1, max_timeout_ns=0, ack_timeout_ns=0),
        ]
        await self.session.insert(base)

    async def play(self, vector: Vector) -> Result:
        """What a vector makes on this switch. The tables are filled for it and emptied again."""
        entities = [self.text.load(value) for value in vector.tables]
        await self._set_up(entities)
        try:
            before = await self._counters(entities)
            marks = self._marks
            seen = []
            for place, step in enumerate(vector.steps):
                seen.append(await self._step(step, vector.expected.steps[place] if vector.expected else None))
            after = await self._counters(entities)
        finally:
            await self._tear_down(entities)
            # BMv2 gives the bucket of an entry that is deleted, as it is, to the next one in its place.
            self._is_spent = any(
                getattr(entity, "rates", None) and isinstance(entity, TableEntry) for entity in entities
            )
        marks = self._marks - marks
        after["parsed"]["0"] = Count(
            after["parsed"]["0"].packets - marks, after["parsed"]["0"].bytes - marks * _MARK_BYTES
        )
        changed: dict[str, dict[str, list[int]]] = {}
        for name, cells in after.items():
            for cell, count in cells.items():
                old = before[name][cell]
                if count != old:
                    changed.setdefault(name, {})[cell] = [count.packets - old.packets, count.bytes - old.bytes]
        return Result(tuple(seen), changed)

    async def _set_up(self, entities: Iterable[Entity]) -> None:
        changed = [entity for entity in entities if isinstance(entity, DefaultEntry | MeterCell)]
        groups = [entity for entity in entities if not isinstance(entity, DefaultEntry | MeterCell | TableEntry)]
        entries = [entity for entity in entities if isinstance(entity, TableEntry)]
        await self.session.apply(Changes(insert=(*groups, *entries)))
        await self.session.apply(Changes(modify=tuple(changed)))

    async def _tear_down(self, entities: Iterable[Entity]) -> None:
        begin: list[Entity] = []
        for entity in entities:
            if isinstance(entity, DefaultEntry):
                default = self.session.codec.default_of(entity.table)
                assert default is not None
                begin.append(default)
            elif isinstance(entity, MeterCell):
                begin.append(MeterCell(entity.meter, entity.index, None))
        # BMv2 gives the bucket of an entry that is deleted, as it is, to the next one in its place.
        begin += [replace(e, rates=_AMPLE) for e in entities if isinstance(e, Microflow) and e.rates is not None]
        await self.session.apply(Changes(modify=tuple(begin)))
        entries = tuple(entity for entity in entities if isinstance(entity, TableEntry))
        groups = tuple(e for e in entities if not isinstance(e, DefaultEntry | MeterCell | TableEntry))
        await self.session.apply(Changes(delete=entries))
        await self.session.apply(Changes(delete=groups))

    async def _counters(self, entities: list[Entity]) -> dict[str, dict[str, Count]]:
        found: dict[str, dict[str, Count]] = {}
        for name in INDEXED:
            found[name] = {str(cell): count for cell, count in enumerate(await self.session.counters(name))}
        for name in DIRECT:
            entries = {
                entity.key: place
                for place, entity in enumerate(entities)
                if isinstance(entity, TableEntry) and name == entity.TABLE
            }
            if entries:
                counts = await self.session.direct_counters(name)
                found[name] = {str(place): counts[key] for key, place in entries.items()}
        return found

    # Packets.

    async def _step(self, step: Step, expected: Seen | None) -> Seen:
        out: Counter[tuple[int, str]] = Counter()
        controller: Counter[tuple[int, str]] = Counter()
        records: list[dict[str, Any]] = []
        await asyncio.sleep(max(_SPACING_S, step.pause_ms / 1000))
        for number in range(step.repeat):
            if number:
                await asyncio.sleep(_AT_ONCE_S if step.at_once else _SPACING_S)
            if step.is_packet_out:
                await self.session.send_packet(step.packet, step.port)
                await asyncio.sleep(self._grace_s)  # through the server and the controller's port
            else:
                self._wires.send(step.port, step.packet)
            if not step.at_once or number == step.repeat - 1:
                await self._await_mark(step.packet, out)
        await self._await_rest(step.packet, out, controller, records, expected)
        return Seen(_counted(out), _counted(controller), records)

    async def _await_mark(self, sent: bytes, out: Counter[tuple[int, str]]) -> None:
        self._marks += 1
        frame = (_MARK_HEAD + self._marks.to_bytes(4, "big")).ljust(_MARK_BYTES, b"\0")
        self._wires.send(_MARK_IN, frame)
        end = time.monotonic() + _PATIENCE_S
        while not self._gather(sent, out, frame):
            if time.monotonic() > end:
                raise Lost(f"{self.session.address}: the switch does not forward")
            await asyncio.sleep(0.0005)

    def _gather(self, sent: bytes, out: Counter[tuple[int, str]], mark: bytes | None = None) -> bool:
        """Take what has come out; whether the mark was there."""
        is_there = False
        for port, frame in self._wires.received():
            if port == _MARK_OUT and frame.startswith(_MARK_HEAD):
                is_there |= frame == mark
            else:
                out[port, AS_SENT if frame == sent else frame.hex()] += 1
        return is_there

    async def _await_rest(
        self,
        sent: bytes,
        out: Counter[tuple[int, str]],
        controller: Counter[tuple[int, str]],
        records: list[dict[str, Any]],
        expected: Seen | None,
    ) -> None:
        """Wait for all that is expected and comes by other ways than the mark, and a little for what is not."""
        end = time.monotonic() + _PATIENCE_S
        quiet_at = end
        before = -1
        while True:
            self._gather(sent, out)
            while not self.session.packets.empty():
                packet = self.session.packets.get_nowait()
                controller[packet.ingress_port, AS_SENT if packet.payload == sent else packet.payload.hex()] += 1
            while not self.session.digests.empty():
                records += dump_records(self.session.digests.get_nowait())
            now = time.monotonic()
            came = out.total() + controller.total() + len(records)
            if came != before:
                before, quiet_at = came, now + self._grace_s
            is_all = expected is None or (
                out.total() >= _total(expected.out)
                and controller.total() >= _total(expected.to_controller)
                and len(records) >= len(expected.records)
            )
            if (is_all and now >= quiet_at) or now >= end:
                return
            await asyncio.sleep(0.001)


def _counted(found: Counter[tuple[int, str]]) -> list[dict[str, Any]]:
    return [
        {"port": port, "packet": packet} | ({"times": times} if times > 1 else {})
        for (port, packet), times in sorted(found.items())
    ]


def _total(values: list[dict[str, Any]]) -> int:
    return sum(value.get("times", 1) for value in values)


def differences(expected: Result, found: Result) -> list[str]:
    """What differs, a line each; empty where nothing does."""
    lines = []
    for number, (wanted, seen) in enumerate(zip(expected.steps, found.steps, strict=True), 1):
        for name in ("out", "to_controller", "records"):
            want, have = getattr(wanted, name), getattr(seen, name)
            if want != have:
                lines.append(f"step {number}: {name}: expected {_brief(want, have)}, got {_brief(have, want)}")
    if expected.counters != found.counters:
        lines.append(f"counters: expected {expected.counters}, got {found.counters}")
    return lines


def _brief(values: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Of flow records only what differs."""
    if len(values) != len(others) or not values or "src" not in values[0]:
        return str(values)
    return str(
        [
            {
                name: value.get(name)
                for name in sorted(value.keys() | other.keys())
                if value.get(name) != other.get(name)
            }
            for value, other in zip(values, others, strict=True)
        ]
    )
