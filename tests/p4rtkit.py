"""A P4Runtime server on a loopback socket, in a thread of its own, and a client that knows nothing but the stubs."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_status
from p4infokit import ACTIONS, TABLES, dinnet_p4info

from dinnet.errors import DinnetError
from dinnet.switch.memory import MemoryTarget
from dinnet.switch.server import ServerOptions, serving
from dinnet.switch.service import P4RuntimeService
from dinnet.switch.target import Target

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
TIMEOUT_S = 20


@dataclass
class Server:
    address: str
    target: Any
    service: P4RuntimeService
    _loop: asyncio.AbstractEventLoop

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the server's own thread."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(TIMEOUT_S)


@contextmanager
def running(target: Target | None = None, options: ServerOptions | None = None) -> Iterator[Server]:
    target = target or MemoryTarget()
    started: queue.Queue[Server | DinnetError] = queue.Queue()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            async with serving(target, options or ServerOptions("127.0.0.1:0")) as server:
                started.put(Server(server.address, target, server.service, asyncio.get_running_loop()))
                await stop.wait()
        except DinnetError as error:
            started.put(error)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    server = started.get(timeout=TIMEOUT_S)
    if isinstance(server, DinnetError):
        thread.join()
        raise server
    try:
        yield server
    finally:
        server._loop.call_soon_threadsafe(stop.set)
        thread.join()


class Client:
    """One controller: a channel, and a stream once it asks for one."""

    def __init__(self, address: str, election_id: int | None = 1, role: str = "", credentials: Any = None) -> None:
        options = [("grpc.max_metadata_size", 4 << 20), ("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.election_id = election_id
        self.role = role
        self._requests: queue.Queue[p4r.StreamMessageRequest | None] = queue.Queue()
        self._stream: Any = None
        self.received: queue.Queue[p4r.StreamMessageResponse | grpc.RpcError | None] = queue.Queue()
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Go away without a word."""
        if self._stream is not None:
            self._stream.cancel()
        self._requests.put(None)
        self.channel.close()
        if self._reader is not None:
            self._reader.join()

    # The stream.

    def send(self, **update: Any) -> None:
        if self._stream is None:
            self._stream = self.stub.StreamChannel(iter(self._requests.get, None))
            self._reader = threading.Thread(target=self._read)
            self._reader.start()
        self._requests.put(p4r.StreamMessageRequest(**update))

    def _read(self) -> None:
        try:
            for message in self._stream:
                self.received.put(message)
            self.received.put(None)
        except grpc.RpcError as error:
            self.received.put(error)

    def receive(self, kind: str) -> Any:
        """The next message, which must be of that kind."""
        message = self.received.get(timeout=TIMEOUT_S)
        assert isinstance(message, p4r.StreamMessageResponse), message
        assert message.WhichOneof("update") == kind, message
        return getattr(message, kind)

    def closed(self) -> grpc.RpcError:
        """The error that the server closed the stream with."""
        message = self.received.get(timeout=TIMEOUT_S)
        assert isinstance(message, grpc.RpcError), message
        return message

    def arbitration(self, device_id: int = 1, **fields: Any) -> p4r.MasterArbitrationUpdate:
        update = p4r.MasterArbitrationUpdate(device_id=device_id, **fields)
        if self.election_id is not None:
            update.election_id.CopyFrom(U128.encode(self.election_id))
        if self.role:
            update.role.name = self.role
        return update

    def arbitrate(self, **fields: Any) -> p4r.MasterArbitrationUpdate:
        self.send(arbitration=self.arbitration(**fields))
        return self.receive("arbitration")

    # Calls.

    def write(self, *updates: p4r.Update, **fields: Any) -> None:
        request = p4r.WriteRequest(device_id=1, role=self.role, updates=updates)
        if self.election_id is not None:
            request.election_id.CopyFrom(U128.encode(self.election_id))
        for name, value in fields.items():
            setattr(request, name, value)
        self.stub.Write(request, timeout=TIMEOUT_S)

    def results(self, *updates: p4r.Update) -> list[int]:
        """What became of each update."""
        try:
            self.write(*updates)
        except grpc.RpcError as error:
            return [e.canonical_code for e in errors(error)]
        return [0] * len(updates)

    def result(self, type: int, **entity: Any) -> int:
        return self.results(update(type, **entity))[0]

    def read(self, *entities: p4r.Entity, **entity: Any) -> list[Any]:
        """The entities that are selected, without their wrapping."""
        wanted = list(entities) or [p4r.Entity(**entity)]
        found: list[Any] = []
        request = p4r.ReadRequest(device_id=1, role=self.role, entities=wanted)
        for response in self.stub.Read(request, timeout=TIMEOUT_S):
            found += [getattr(item, item.WhichOneof("entity") or "") for item in response.entities]
        return found

    def set_pipeline(self, action: int | None = None, config: p4r.ForwardingPipelineConfig | None = None) -> None:
        types = p4r.SetForwardingPipelineConfigRequest
        action = types.VERIFY_AND_COMMIT if action is None else action
        request = types(device_id=1, role=self.role, action=action)
        if self.election_id is not None:
            request.election_id.CopyFrom(U128.encode(self.election_id))
        if action != types.COMMIT or config is not None:
            request.config.CopyFrom(config or pipeline_config())
        self.stub.SetForwardingPipelineConfig(request, timeout=TIMEOUT_S)


@contextmanager
def controlled() -> Iterator[tuple[Server, Client]]:
    """A server with the pipeline set, and its primary."""
    with running() as server, Client(server.address) as client:
        client.arbitrate()
        client.set_pipeline()
        yield server, client


def pipeline_config(cookie: int = 7) -> p4r.ForwardingPipelineConfig:
    config = p4r.ForwardingPipelineConfig(p4info=dinnet_p4info(), p4_device_config=b"as the compiler made it")
    config.cookie.cookie = cookie
    return config


def errors(error: grpc.RpcError) -> list[p4r.Error]:
    """The p4.Error of each member of a batch."""
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    found = []
    for packed in rpc_status.Status.FromString(details).details:
        found.append(p4r.Error())
        assert packed.Unpack(found[-1])
    return found


def update(type: int, **entity: Any) -> p4r.Update:
    return p4r.Update(type=type, entity=p4r.Entity(**entity))


def exact(id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=id, exact=p4r.FieldMatch.Exact(value=value))


def lpm(id: int, value: bytes, length: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=id, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=length))


def ternary(id: int, value: bytes, mask: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=id, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def action(name: str, *params: bytes) -> p4r.TableAction:
    found = p4r.Action(action_id=ACTIONS[name])
    for id, value in enumerate(params, 1):
        found.params.add(param_id=id, value=value)
    return p4r.TableAction(action=found)


def entry(table: str, *match: p4r.FieldMatch, **fields: Any) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=TABLES[table], match=match, **fields)


def microflow(number: int, **fields: Any) -> p4r.TableEntry:
    """A micro-flow between IPv4-mapped addresses; different numbers are different flows."""
    address = b"\xff\xff\x0a" + number.to_bytes(3, "big")
    values = [address, b"\xff\xff\x0a\x00\x00\x01", b"\x06", b"\x30\x39", b"\x01\xbb", b"\x00", b"\x00"]
    fields.setdefault("action", action("set_mark", b"\x01", b"\x03", (number % 250 + 1).to_bytes(1, "big")))
    return entry("microflow", *(exact(id, value) for id, value in enumerate(values, 1)), **fields)


def microflows(numbers: Iterable[int], **fields: Any) -> list[p4r.Update]:
    return [update(INSERT, table_entry=microflow(number, **fields)) for number in numbers]
