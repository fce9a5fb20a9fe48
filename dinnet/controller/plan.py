"""The difference over the whole network between an intent and what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from dinnet.controller.desired import host_state, switch_entities
from dinnet.controller.host_task import line_of
from dinnet.controller.intent import Intent
from dinnet.controller.switch_task import cleared, planned
from dinnet.errors import DinnetError
from dinnet.host.driver import Host
from dinnet.host.state import HostState

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What is to change at one switch or host: lines that begin with +, ~ or -."""

    name: str
    kind: Literal["switch", "host"]
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # that stay when the changes are made
    error: str = ""  # it could not be looked at, or not be changed


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    devices: tuple[DevicePlan, ...]

    @property
    def is_empty(self) -> bool:
        return not any(device.changes for device in self.devices)

    @property
    def failed(self) -> bool:
        return any(device.error for device in self.devices)


async def plan(intent: Intent, *, nothing: bool = False) -> NetworkPlan:
    """Compare; nothing is changed. A device that cannot be reached does not keep the others back.

    Args:
        intent: What should be.
        nothing: What should be is nothing of dinnet's.
    """

    async def switch(name: str) -> DevicePlan:
        wanted = None if nothing else switch_entities(intent, name)
        changes = await planned(intent.switches[name], wanted)
        return DevicePlan(name, "switch", tuple(str(changes).splitlines()))

    async def host(name: str) -> DevicePlan:
        wanted = HostState() if nothing else host_state(intent, name)
        found = await asyncio.to_thread(lambda: Host(intent.hosts[name].netns).plan(wanted))
        return DevicePlan(name, "host", tuple(map(line_of, found.changes)), tuple(map(str, found.problems)))

    return await _everywhere(intent, switch, host)


async def remove(intent: Intent) -> NetworkPlan:
    """Take away what dinnet made everywhere; returns what was done."""

    async def switch(name: str) -> DevicePlan:
        changes = await cleared(intent.switches[name], intent.controller.election_id)
        return DevicePlan(name, "switch", tuple(str(changes).splitlines()))

    async def host(name: str) -> DevicePlan:
        def away() -> DevicePlan:
            driver = Host(intent.hosts[name].netns)
            found = driver.plan(HostState())
            driver.apply(found)
            return DevicePlan(name, "host", tuple(map(line_of, found.changes)), tuple(map(str, found.problems)))

        return await asyncio.to_thread(away)

    return await _everywhere(intent, switch, host)


_Look = Callable[[str], Coroutine[Any, Any, DevicePlan]]


async def _everywhere(intent: Intent, switch: _Look, host: _Look) -> NetworkPlan:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str, kind: Literal["switch", "host"], look: _Look) -> DevicePlan:
        async with room:
            try:
                return await look(name)
            except DinnetError as error:
                return DevicePlan(name, kind, error=str(error))

    looks = [one(name, "switch", switch) for name in intent.switches]
    looks += [one(name, "host", host) for name in intent.hosts]
    return NetworkPlan(tuple(await asyncio.gather(*looks)))
