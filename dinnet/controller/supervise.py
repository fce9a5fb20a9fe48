"""Tasks that go on for ever: what fails is begun again, after a while that grows."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from dinnet.controller.status import DeviceStatus
from dinnet.errors import DinnetError

_log: Final = logging.getLogger(__name__)
FIRST_S: Final = 0.2
LONGEST_S: Final = 10.0
_STEADY_S: Final = 30.0  # a run as long as this was a good one: the next wait is short again


async def supervised(status: DeviceStatus, body: Callable[[], Awaitable[None]]) -> None:
    """Run `body` again and again until cancelled. Waits are full-jittered, so that many devices do not come at once."""
    loop = asyncio.get_running_loop()
    wait_s = FIRST_S
    while True:
        begun = loop.time()
        try:
            await body()
        except DinnetError as error:
            if str(error) != status.error:
                _log.warning("%s %s: %s", status.kind, status.name, error)
            status.fail(str(error))
        except Exception as error:  # noqa: BLE001 - told, and begun again
            _log.exception("%s %s: a fault of the controller's own", status.kind, status.name)
            status.fail(f"a fault of the controller's own: {type(error).__name__}: {error}")
        if loop.time() - begun > _STEADY_S:
            wait_s = FIRST_S
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        wait_s = min(wait_s * 2, LONGEST_S)


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends; the others are cancelled, and waited for. Raises what the first raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
