"""The P4Runtime service: each call checked as the specification orders, then handed to the module that knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

import grpc
from finsy.proto import p4r, p4r_grpc

from dinnet.switch.arbitration import Arbiter
from dinnet.switch.bytestrings import to_bytes
from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.pipeline import Installed, Pipelines
from dinnet.switch.read import Answer, Reader, fitting
from dinnet.switch.roles import Rights
from dinnet.switch.sessions import Session
from dinnet.switch.status import DETAILS_KEY, batch_status
from dinnet.switch.target import Entry, Faults, Target

API_VERSION: Final = "1.4.1"
#: Requests of one Read that may select whole tables: a list of all that is there is kept for each.
MAX_WILDCARDS: Final = 256
#: Entries told of in one idle notification.
MAX_IDLE: Final = 1024

_Context = grpc.aio.ServicerContext[Any, Any]
_Answer = TypeVar("_Answer")


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """Serves one device, on one event loop; `events` takes what the data plane tells from any thread."""

    def __init__(self, target: Target, device_id: int) -> None:
        self._target = target
        self._writing = asyncio.Lock()
        self._arbiter = Arbiter(device_id, self._writing)
        self.events = LoopEvents(self)
        self.packets_lost = 0  # packet-ins that no controller took
        self.idle_lost = 0
        target.start(self.events)
        self._pipelines = Pipelines(target, self._send_digests)

    # Unary calls.

    async def Capabilities(self, request: p4r.CapabilitiesRequest, context: _Context) -> p4r.CapabilitiesResponse:
        async def answer() -> p4r.CapabilitiesResponse:
            if request.device_id:
                self._arbiter.check_device(request.device_id)
            return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

        return await _answered(context, answer)

    async def Write(self, request: p4r.WriteRequest, context: _Context) -> p4r.WriteResponse:
        faults = await _answered(context, lambda: self._write(request))
        if faults:
            details = batch_status(_WRITE_FAILED, len(request.updates), faults)
            await context.abort(grpc.StatusCode.UNKNOWN, _WRITE_FAILED, ((DETAILS_KEY, details),))
        return p4r.WriteResponse()

    async def _write(self, request: p4r.WriteRequest) -> Faults:
        self._check_primary(request)
        async with self._writing:
            rights = self._check_primary(request)  # another controller may have taken over while this one waited
            current = self._pipelines.current
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise Refused(Code.UNIMPLEMENTED, "only CONTINUE_ON_ERROR is served")
            return await current.write(list(request.updates), rights)

    async def Read(self, request: p4r.ReadRequest, context: _Context) -> AsyncIterator[p4r.ReadResponse]:
        answers, faults = await _answered(context, lambda: self._select(request))
        for answer in answers:
            for response in answer:
                for part in fitting(response):
                    yield part
                await asyncio.sleep(0)
        if faults:
            details = batch_status(_READ_FAILED, len(request.entities), faults)
            await context.abort(grpc.StatusCode.UNKNOWN, _READ_FAILED, ((DETAILS_KEY, details),))

    async def _select(self, request: p4r.ReadRequest) -> tuple[list[Answer], Faults]:
        """What is read, as it is between two writes."""
        self._arbiter.check_device(request.device_id)
        if len(request.entities) > MAX_WILDCARDS and sum(map(_is_wide, request.entities)) > MAX_WILDCARDS:
            raise Refused(Code.RESOURCE_EXHAUSTED, f"more than {MAX_WILDCARDS} requests for whole tables in one Read")
        answers: list[Answer] = []
        faults: Faults = {}
        async with self._writing:
            current = self._pipelines.current
            reader = Reader(current.program, current.target, current.digests, self._arbiter.rights(request.role))
            for position, entity in enumerate(request.entities):
                try:
                    answers.append(reader.select(entity))
                except Refused as error:
                    faults[position] = error.fault
        return answers, faults

    async def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: _Context
    ) -> p4r.SetForwardingPipelineConfigResponse:
        async def answer() -> p4r.SetForwardingPipelineConfigResponse:
            self._check_primary(request)
            async with self._writing:
                if not self._check_primary(request).sets_pipeline:
                    raise Refused(Code.PERMISSION_DENIED, "the role may not set the pipeline")
                await self._pipelines.set(request)
            return p4r.SetForwardingPipelineConfigResponse()

        return await _answered(context, answer)

    async def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: _Context
    ) -> p4r.GetForwardingPipelineConfigResponse:
        async def answer() -> p4r.GetForwardingPipelineConfigResponse:
            self._arbiter.check_device(request.device_id)
            return self._pipelines.get(request.response_type)

        return await _answered(context, answer)

    def _check_primary(self, request: p4r.WriteRequest | p4r.SetForwardingPipelineConfigRequest) -> Rights:
        election_id = request.election_id if request.HasField("election_id") else None
        return self._arbiter.check_primary(request.device_id, request.role, election_id)

    # The stream.

    async def StreamChannel(
        self, request_iterator: AsyncIterator[p4r.StreamMessageRequest], context: _Context
    ) -> AsyncIterator[p4r.StreamMessageResponse]:
        session = Session()
        listener = asyncio.create_task(self._listen(session, request_iterator))
        try:
            while (message := await session.next()) is not None:
                yield message
        finally:
            self._arbiter.leave(session)
            if not listener.done():
                listener.cancel()
        refused = await listener
        if refused is not None:
            await _abort(context, refused)

    async def _listen(self, session: Session, requests: AsyncIterator[p4r.StreamMessageRequest]) -> Refused | None:
        """Take what a controller sends until it ends; why the stream must be closed, if it must."""
        try:
            async for request in requests:
                await self._take(session, request)
                if session.is_stalled:
                    raise Refused(Code.RESOURCE_EXHAUSTED, "the controller does not read what it is told")
        except Refused as error:
            return error
        finally:
            self._arbiter.leave(session)
            session.end()
        return None

    async def _take(self, session: Session, request: p4r.StreamMessageRequest) -> None:
        match request.WhichOneof("update"):
            case "arbitration":
                await self._arbiter.update(session, request.arbitration)
            case "packet":
                try:
                    self._packet_out(session, request.packet)
                except Refused as error:
                    details = p4r.PacketOutError(packet_out=request.packet)
                    _report(session, error, p4r.StreamError(packet_out=details))
            case "digest_ack":
                try:
                    self._require_primary(session)
                    self._running().digests.acknowledged(request.digest_ack)
                except Refused as error:
                    ack = p4r.DigestListAckError(digest_list_ack=request.digest_ack)
                    _report(session, error, p4r.StreamError(digest_list_ack=ack))
            case "other":
                unknown = Refused(Code.UNIMPLEMENTED, "messages of this kind are not served")
                other = p4r.StreamOtherError(other=request.other)
                _report(session, unknown, p4r.StreamError(other=other))
            case _:
                empty = invalid("the message is empty, or of a later version of P4Runtime")
                _report(session, empty, p4r.StreamError(other=p4r.StreamOtherError()))

    def _require_primary(self, session: Session) -> Rights:
        rights = self._arbiter.rights_of(session)
        if rights is None:
            raise Refused(Code.PERMISSION_DENIED, "not the primary controller")
        return rights

    def _running(self) -> Installed:
        running = self._pipelines.running
        if running is None:
            raise Refused(Code.FAILED_PRECONDITION, "no forwarding pipeline config is set")
        return running

    def _packet_out(self, session: Session, packet: p4r.PacketOut) -> None:
        self._require_primary(session)
        values = self._running().program.packet_out.parse(packet)
        self._target.packet_out(packet.payload, values)

    # What the data plane tells; on the event loop.

    def digests_arrived(self, digest_id: int, rows: Sequence[tuple[int, ...]]) -> None:
        running = self._pipelines.running
        if running is not None:
            running.digests.arrived(digest_id, rows)

    def is_behind(self) -> bool:
        """Whether a controller that may get digests has not taken those that it was sent."""
        return any(session.is_behind for session, _ in self._arbiter.primaries())

    def _send_digests(self, digest_id: int, digests: p4r.DigestList) -> bool:
        message = p4r.StreamMessageResponse(digest=digests)
        takers = [session for session, rights in self._arbiter.primaries() if rights.covers(digest_id)]
        return _offer(takers, message)

    def packet_arrived(self, payload: bytes, values: tuple[int, ...]) -> None:
        running = self._pipelines.running
        if running is None:
            self.packets_lost += 1
            return
        packet = running.program.packet_in.packet_in(payload, values)
        message = p4r.StreamMessageResponse(packet=packet)
        takers = [session for session, rights in self._arbiter.primaries() if _sees(rights, packet)]
        if not _offer(takers, message):
            self.packets_lost += 1

    def idle_arrived(self, table_id: int, entries: Sequence[Entry]) -> None:
        running = self._pipelines.running
        takers = [session for session, rights in self._arbiter.primaries() if rights.covers(table_id)]
        if running is None or not takers:
            self.idle_lost += len(entries)
            return
        codec = running.program.codecs[table_id]
        for start in range(0, len(entries), MAX_IDLE):
            piece = entries[start : start + MAX_IDLE]
            notification = p4r.IdleTimeoutNotification(timestamp=time.time_ns())
            for entry in piece:
                codec.fill(notification.table_entry.add(), entry, with_meter=False)
            message = p4r.StreamMessageResponse(idle_timeout_notification=notification)
            if not _offer(takers, message):
                self.idle_lost += len(piece)


class LoopEvents:
    """`Events` that hop to the service's event loop."""

    def __init__(self, service: P4RuntimeService) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._is_behind = False

    @property
    def is_behind(self) -> bool:
        return self._is_behind

    def digests(self, digest_id: int, rows: Sequence[tuple[int, ...]]) -> None:
        self._is_behind = True
        self._call(self._digests, digest_id, rows)

    def _digests(self, digest_id: int, rows: Sequence[tuple[int, ...]]) -> None:
        self._service.digests_arrived(digest_id, rows)
        self._settle()

    def _settle(self) -> None:
        """Let more come when what came has gone on."""
        if self._service.is_behind():
            self._loop.call_later(_AGAIN_S, self._settle)
        else:
            self._is_behind = False

    def packet_in(self, payload: bytes, metadata: tuple[int, ...]) -> None:
        self._call(self._service.packet_arrived, payload, metadata)

    def idle(self, table_id: int, entries: Sequence[Entry]) -> None:
        self._call(self._service.idle_arrived, table_id, entries)

    def _call(self, method: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(method, *arguments)


_AGAIN_S: Final = 0.005  # until a controller that is behind is looked at again
_WRITE_FAILED: Final = "some of the updates failed"
_READ_FAILED: Final = "some of the requests failed"


async def _answered(context: _Context, answer: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """The answer, or the end of the call with the code and reason of the refusal."""
    try:
        return await answer()
    except Refused as error:
        await _abort(context, error)


async def _abort(context: _Context, error: Refused) -> NoReturn:
    await context.abort(_STATUS[error.code], str(error))
    raise AssertionError  # abort does not return


_STATUS: Final = {status.value[0]: status for status in grpc.StatusCode}


def _is_wide(entity: p4r.Entity) -> bool:
    """Whether a request may select more than one thing."""
    match entity.WhichOneof("entity"):
        case "table_entry":
            return not entity.table_entry.match
        case "direct_counter_entry":
            return not entity.direct_counter_entry.table_entry.match
        case "direct_meter_entry":
            return not entity.direct_meter_entry.table_entry.match
        case "counter_entry":
            return not entity.counter_entry.HasField("index")
        case "meter_entry":
            return not entity.meter_entry.HasField("index")
        case _:
            return True


def _offer(sessions: Sequence[Session], message: p4r.StreamMessageResponse) -> bool:
    """Offer a message to each; whether one took it."""
    taken = [session.offer(message) for session in sessions]
    return any(taken)


def _report(session: Session, error: Refused, report: p4r.StreamError) -> None:
    report.canonical_code = error.code
    report.message = str(error)
    session.offer(p4r.StreamMessageResponse(error=report))


def _sees(rights: Rights, packet: p4r.PacketIn) -> bool:
    if not rights.sees_packets:
        return False
    if rights.packet_filter is None:
        return True
    id, value = rights.packet_filter
    wanted = to_bytes(value)
    return any(item.metadata_id == id and item.value == wanted for item in packet.metadata)
