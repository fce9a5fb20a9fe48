"""The forwarding pipeline in force, the one that is saved but not yet in force, and the way from one to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from finsy.proto import p4r

from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.digests import Digests
from dinnet.switch.memory import MemoryTarget, initial_default
from dinnet.switch.p4info import P4Info, P4InfoError, Table
from dinnet.switch.program import Program
from dinnet.switch.roles import ALL_RIGHTS, Rights
from dinnet.switch.target import CounterData, Faults, Target
from dinnet.switch.write import Writer

_Request = p4r.SetForwardingPipelineConfigRequest

#: Updates applied before other calls get a turn: some milliseconds of work.
PIECE: Final = 256

SendDigests = Callable[[int, p4r.DigestList], bool]


@dataclass(slots=True)
class Installed:
    """A program with what it works on."""

    program: Program
    target: Target
    digests: Digests
    #: What was written since the program was saved; None: it is in force, and nothing needs remembering.
    written: list[p4r.Update] | None = None

    async def write(self, updates: list[p4r.Update], rights: Rights) -> Faults:
        """Apply a batch, letting others take turns; what failed, by position."""
        writer = Writer(self.program, self.target, self.digests, rights)
        faults: Faults = {}
        for start in range(0, len(updates), PIECE):
            if start:
                await asyncio.sleep(0)
            for position, fault in writer.apply(updates[start : start + PIECE]).items():
                faults[start + position] = fault
        if self.written is not None:
            self.written += [update for position, update in enumerate(updates) if position not in faults]
        return faults


class Pipelines:
    """What `SetForwardingPipelineConfig` changes. Call its methods with the lock held that writes hold."""

    def __init__(self, target: Target, send: SendDigests) -> None:
        self._target = target
        self._send = send
        self._running: Installed | None = None
        self._saved: Installed | None = None
        adopted = target.running()
        if adopted is not None:
            self._running = self._installed(Program(adopted))
            self._running.digests.resume()

    @property
    def running(self) -> Installed | None:
        """What the data plane does; None: nothing yet."""
        return self._running

    @property
    def current(self) -> Installed:
        """What reads and writes are about: the saved pipeline if there is one, else the running one.

        Raises:
            Refused: There is neither.
        """
        current = self._saved or self._running
        if current is None:
            raise Refused(Code.FAILED_PRECONDITION, "no forwarding pipeline config is set")
        return current

    async def set(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        """Do what a client asks for.

        Raises:
            Refused: INVALID_ARGUMENT or NOT_FOUND, as the specification says for each action; whatever the target says.
        """
        action = request.action
        if action == _Request.COMMIT:
            if request.HasField("config"):
                raise invalid("COMMIT takes the config that was saved before, and no other")
            await self._commit()
            return
        if action not in _ACTIONS:
            raise invalid("the request does not say what to do with the config")
        if not request.HasField("config") or not request.config.HasField("p4info"):
            raise invalid("the request has no config with a P4Info")
        program = self._verified(request.config)
        if action == _Request.VERIFY_AND_SAVE:
            self._save(program)
        elif action == _Request.VERIFY_AND_COMMIT:
            self._install(program, keep=False)
        elif action == _Request.RECONCILE_AND_COMMIT:
            if self._running is not None:
                check_keeps(self._running.program.info, program.info, self._target)
            self._install(program, keep=True)

    def get(self, response_type: int) -> p4r.GetForwardingPipelineConfigResponse:
        """The config that reads and writes are about; without any, an empty response."""
        types = p4r.GetForwardingPipelineConfigRequest
        current = self._saved or self._running
        response = p4r.GetForwardingPipelineConfigResponse()
        if current is None:
            return response
        pipeline = current.program.pipeline
        config = response.config
        config.SetInParent()
        if pipeline.cookie is not None:
            config.cookie.cookie = pipeline.cookie
        if response_type in {types.ALL, types.P4INFO_AND_COOKIE}:
            config.p4info.ParseFromString(pipeline.p4info)
        if response_type in {types.ALL, types.DEVICE_CONFIG_AND_COOKIE}:
            config.p4_device_config = pipeline.device_config
        return response

    def _verified(self, config: p4r.ForwardingPipelineConfig) -> Program:
        cookie = config.cookie.cookie if config.HasField("cookie") else None
        try:
            program = Program.of(config.p4info, config.p4_device_config, cookie)
        except P4InfoError as error:
            raise invalid(f"P4Info: {error}") from error
        self._target.verify(program.pipeline)
        return program

    def _installed(self, program: Program) -> Installed:
        return Installed(program, self._target, Digests(program, self._target, self._send))

    def _save(self, program: Program) -> None:
        """Keep a program, and everything that will be written for it, beside the one that runs."""
        shadow = MemoryTarget()
        shadow.load(program.pipeline, keep=False)
        self._discard()
        self._saved = Installed(program, shadow, Digests(program, shadow, lambda *_: False), written=[])

    def _discard(self) -> None:
        if self._saved is not None:
            self._saved.digests.close()
            self._saved = None

    def _install(self, program: Program, *, keep: bool) -> None:
        self._target.load(program.pipeline, keep=keep)
        self._discard()
        before = self._running
        self._running = self._installed(program)
        if before is not None:
            settings = before.digests.configured(0)
            before.digests.close()
            if keep:
                for entry in settings:
                    if entry.digest_id in program.info.digests:
                        self._running.digests.configure(p4r.Update.INSERT, entry)

    async def _commit(self) -> None:
        saved = self._saved
        if saved is None or saved.written is None:
            raise Refused(Code.NOT_FOUND, "no config is saved that could be committed")
        self._install(saved.program, keep=False)
        faults = await self.current.write(saved.written, ALL_RIGHTS)
        if faults:
            fault = next(iter(faults.values()))
            raise Refused(
                Code.INTERNAL,
                f"{len(faults)} of {len(saved.written)} updates since the save failed, one of them: {fault.message}",
            )


_ACTIONS: Final = frozenset(
    {_Request.VERIFY, _Request.VERIFY_AND_SAVE, _Request.VERIFY_AND_COMMIT, _Request.RECONCILE_AND_COMMIT}
)


def check_keeps(old: P4Info, new: P4Info, target: Target) -> None:
    """Check that everything a target holds means the same in another program.

    Raises:
        Refused: INVALID_ARGUMENT; the message names the first thing that would be lost.
    """
    for table in old.tables.values():
        entries = len(target.entries(table))
        is_used = entries > 0 or target.default(table) != initial_default(table)
        if is_used and not _is_same(table, new.tables.get(table.id), old, new, entries):
            raise invalid(f"the entries of {table.name} cannot be kept: the new config has another table in its place")
    for counter in old.counters.values():
        same = new.counters.get(counter.id)
        if same is None or same.size < counter.size:
            kept = same.size if same is not None else 0
            rest = target.read_counters(counter, kept, counter.size - kept)
            if any(data != CounterData() for data in rest):
                raise invalid(f"the counts of {counter.name} cannot be kept")
    for meter in old.meters.values():
        other = new.meters.get(meter.id)
        kept = (
            min(other.size, meter.size)
            if other is not None and (other.unit, other.kind) == (meter.unit, meter.kind)
            else 0
        )
        if any(config is not None for config in target.read_meters(meter, kept, meter.size - kept)):
            raise invalid(f"the configuration of {meter.name} cannot be kept")


def _is_same(old: Table, new: Table | None, old_info: P4Info, new_info: P4Info, entries: int) -> bool:
    """Whether entries of a table are entries of another one, unchanged."""
    if new is None or (new.size and new.size < entries):
        return False
    form = [(f.id, f.kind, f.width) for f in old.fields] == [(f.id, f.kind, f.width) for f in new.fields]
    actions = all(
        new.actions.get(id) is scope and _widths(new_info, id) == _widths(old_info, id)
        for id, scope in old.actions.items()
    )
    direct = (old.counter is None, old.meter is None) == (new.counter is None, new.meter is None)
    return form and actions and direct and new.has_idle_timeout == old.has_idle_timeout


def _widths(info: P4Info, action_id: int) -> list[tuple[int, int]]:
    return [(param.id, param.width) for param in info.actions[action_id].params]
