"""The controller as it runs: a task for each switch and host, the intent file watched, an API on the side."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from dinnet.classifier import Classifier
from dinnet.controller.buckets import Capacities, Sharing
from dinnet.controller.host_task import HostTask
from dinnet.controller.intent import CLASSES, Intent, load_intent
from dinnet.controller.metrics import Metrics
from dinnet.controller.saved import save
from dinnet.controller.supervise import first_of
from dinnet.controller.switch_task import SwitchTask
from dinnet.controller.web import Answer, Request, listening, told
from dinnet.dataplane.entity import in_words
from dinnet.errors import DinnetError, reason

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0  # between looks at the intent file
_SHOWN_MARKS: Final = 1000
_TOKEN_BYTES: Final = 16  # at least


class Service:
    def __init__(self, path: Path, intent: Intent, state: Path | None = None, problem: str = "") -> None:
        self.metrics = Metrics()
        self.intent = intent
        self.problem = problem  # with the intent file, so that an older one is in force
        self.api = ""
        self.scrape = ""
        self._path = path
        self._state = state
        self._began = time.time()
        self._classifier = classifier_of(intent)
        self._token = token_of(intent)
        self._capacities = Capacities()
        self._rebalance = asyncio.Event()
        self._sharing: dict[str, Sharing] = {}
        self._tasks: dict[str, tuple[SwitchTask | HostTask, asyncio.Task[None]]] = {}

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Until SIGINT or SIGTERM. All stays in force at the end.

        Raises:
            DinnetError: The API cannot be served.
        """
        ended, reload = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = {signal.SIGINT: ended, signal.SIGTERM: ended, signal.SIGHUP: reload}
        for number, event in signals.items():
            loop.add_signal_handler(number, event.set)
        try:
            async with AsyncExitStack() as stack:
                self.api = await stack.enter_async_context(listening(self.intent.controller.api, self._answer))
                if self.intent.controller.metrics is not None:
                    scrape = listening(self.intent.controller.metrics, self._scraped)
                    self.scrape = await stack.enter_async_context(scrape)
                self._save()
                self._start()
                stack.push_async_callback(self._stop, ())
                if ready is not None:
                    ready.set()

                async def end() -> None:
                    await ended.wait()

                await first_of(end(), self._watch_file(reload), self._share_out())
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    # Tasks of switches and hosts.

    def _start(self) -> None:
        """Begin the tasks that the intent wants and that are not there."""
        for name in self.intent.switches:
            if name not in self._tasks:
                sharing = Sharing(self.intent, self._rebalance.set)
                self._sharing[name] = sharing
                switch = SwitchTask(name, self.intent, self._classifier, self.metrics, sharing.newcomer)
                self._tasks[name] = switch, asyncio.create_task(switch.run(), name=name)
        for name in self.intent.hosts:
            if name not in self._tasks:
                host = HostTask(name, self.intent, self.metrics)
                self._tasks[name] = host, asyncio.create_task(host.run(), name=name)

    async def _stop(self, kept: Iterator[str] | tuple[str, ...]) -> None:
        """End all tasks but those `kept`."""
        ending = [self._tasks.pop(name)[1] for name in set(self._tasks) - set(kept)]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    # The intent file.

    async def _watch_file(self, reload: asyncio.Event) -> None:
        seen = _mark_of(self._path)
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await reload.wait()
            except TimeoutError:
                pass
            now = _mark_of(self._path)
            if reload.is_set() or now != seen:
                reload.clear()
                seen = now
                await self._reload()

    async def _reload(self) -> None:
        try:
            intent = load_intent(self._path)
            classifier = self._classifier
            if intent.classifier != self.intent.classifier:
                classifier = await asyncio.to_thread(classifier_of, intent)
            token = token_of(intent)
        except DinnetError as error:
            self.problem = str(error)
            _log.error("the intent before stays in force: %s", error)
            return
        self.problem = ""
        if intent == self.intent:
            return
        before, self.intent = self.intent, intent
        if (intent.controller.api, intent.controller.metrics) != (before.controller.api, before.controller.metrics):
            _log.warning("controller.api and controller.metrics count from the next start on")
        kept = set(_same_places(before, intent))
        if classifier is not self._classifier or intent.controller.election_id != before.controller.election_id:
            kept -= set(intent.switches)
        for name in self._tasks.keys() - intent.switches.keys() - intent.hosts.keys():
            _log.warning("%s is not in the intent any more; what it has stays as it is", name)
        self._classifier, self._token = classifier, token
        await self._stop(tuple(kept))
        for name in kept:
            self._tasks[name][0].use(intent)
            if name in self._sharing:
                self._sharing[name].use(intent)
        self._start()
        self._rebalance.set()
        self._save()
        _log.info("%s is in force", self._path)

    def _save(self) -> None:
        if self._state is not None and not self.problem:
            try:
                save(self._state, self._path)
            except OSError as error:
                _log.warning("%s: cannot keep the intent for a start with a bad one: %s", self._state, reason(error))

    # Token buckets.

    async def _share_out(self) -> None:
        while True:
            settings = self.intent.token_buckets
            self._rebalance.clear()
            if settings is None:
                await self._rebalance.wait()
                continue
            try:
                async with asyncio.timeout(settings.interval_s):
                    await self._rebalance.wait()
                await asyncio.sleep(settings.interval_s / 10)  # newcomers come in swarms
            except TimeoutError:
                pass
            capacities = self._capacities.current(settings.report_ttl_s)
            for name, sharing in self._sharing.items():
                task = self._tasks[name][0] if name in self._tasks else None
                if isinstance(task, SwitchTask):
                    try:
                        await task.retune(sharing, capacities)
                    except DinnetError as error:  # its own task says so, and connects again
                        _log.debug("switch %s: %s", name, error)

    # The API.

    def _answer(self, request: Request) -> Answer:
        if request.path == "/v1/status" and request.method == "GET":
            return told(200, self.plain())
        if request.path == "/v1/capacity":
            return self._capacity(request)
        if request.path == "/metrics" and request.method == "GET":
            return self._scraped(request)
        return told(404, {"error": "there is /v1/status, /v1/capacity and /metrics"})

    def _scraped(self, request: Request) -> Answer:
        if request.path != "/metrics":
            return told(404, {"error": "there is /metrics"})
        return Answer(200, self.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")

    def _capacity(self, request: Request) -> Answer:
        if request.method != "POST":
            return told(405, {"error": 'POST a node\'s address and what it can take: {"node": ..., "bps": ...}'})
        if self._token is not None:
            shown = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(shown, b"Bearer " + self._token):
                return told(401, {"error": "a bearer token is needed"})
        elif not self.api.startswith("unix:"):
            return told(401, {"error": "set token_buckets.token_file: reports over TCP need a token"})
        try:
            given = json.loads(request.body)
            self._capacities.report(given["node"], given["bps"])
        except (ValueError, KeyError, TypeError) as error:
            return told(400, {"error": f'not a report like {{"node": "10.1.0.5", "bps": 50000000}}: {error}'})
        self._rebalance.set()
        return Answer(204)

    def plain(self) -> dict[str, Any]:
        """For JSON: all that `status` shows."""
        devices, queues, marks, count = [], [], [], 0
        for task, _ in self._tasks.values():
            devices.append(task.status.plain())
            if isinstance(task, HostTask):
                queues += self._queues(task)
            else:
                count += len(task.book)
                marks += _marks(task)
        return {
            "intent": str(self._path),
            "problem": self.problem,
            "since": self._began,
            "time": time.time(),
            "devices": devices,
            "queues": queues,
            "microflows": count,
            "marks": marks[:_SHOWN_MARKS],
        }

    def _queues(self, task: HostTask) -> list[dict[str, Any]]:
        return [
            {
                "host": task.status.name, "link": each.device, "slice": each.slice, "tc": each.tc, "bytes": each.bytes,
                "packets": each.packets, "drops": each.drops, "backlog_bytes": each.backlog_bytes,
                "guarantee_bps": task.guarantees.get((each.device, each.slice, each.tc)), "rate_bps": each_rate,
            }
            for each, each_rate in task.with_rates()
        ]  # fmt: skip


def _marks(task: SwitchTask) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for mark in {id(mark): mark for mark in task.book.marks.values()}.values():
        if len(found) == _SHOWN_MARKS:
            break
        if mark.keys:
            key = min(mark.keys)
            found.append(
                {
                    "switch": task.status.name, "src": in_words(key.src, 128), "sport": key.sport,
                    "dst": in_words(key.dst, 128), "dport": key.dport, "proto": key.proto, "slice": mark.slice,
                    "tc": mark.tc, "class": None if mark.class_id is None else CLASSES[mark.class_id],
                    "confidence": round(mark.confidence, 3),
                    "rate_bps": mark.rates.cir * 8 if mark.rates is not None else None,
                }
            )  # fmt: skip
    return found


def _same_places(before: Intent, after: Intent) -> Iterator[str]:
    """Switches and hosts that are reached as before."""
    for name, switch in after.switches.items():
        old = before.switches.get(name)
        if old is not None and (old.address, old.device_id, old.tls) == (switch.address, switch.device_id, switch.tls):
            yield name
    for name, host in after.hosts.items():
        if name in before.hosts and before.hosts[name].netns == host.netns:
            yield name


def _mark_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def classifier_of(intent: Intent) -> Classifier | None:
    """The model that the intent names, ready for its first record.

    Raises:
        DinnetError: It is missing or not usable.
    """
    if not intent.classifier.enabled or not intent.switches:
        return None
    classifier = Classifier.load(intent.classifier.model)
    classifier.threshold = intent.classifier.threshold
    classifier.warm_up()
    return classifier


def token_of(intent: Intent) -> bytes | None:
    """The bearer token that inference nodes show.

    Raises:
        DinnetError: Its file cannot be read, others can read it too, or there is hardly anything in it.
    """
    path = intent.token_buckets.token_file if intent.token_buckets else None
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except OSError as error:
        raise DinnetError(f"{path}: cannot read: {reason(error)}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise DinnetError(f"{path}: others can read the token; chmod 600 it")
    if len(token) < _TOKEN_BYTES:
        raise DinnetError(f"{path}: a token has at least {_TOKEN_BYTES} characters")
    return token
