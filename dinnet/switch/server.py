"""The P4Runtime server as a thing that is opened and closed: where it listens, with which certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from finsy.proto import p4r_grpc

from dinnet.errors import DinnetError, reason
from dinnet.switch.service import P4RuntimeService
from dinnet.switch.target import Target

#: The port that IANA gave P4Runtime.
DEFAULT_ADDRESS: Final = "127.0.0.1:9559"
#: Streams and calls at a time; more are refused. Each may bring a message of the largest size.
MAX_CALLS: Final = 512
#: Time that calls under way get when the server closes.
CLOSING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, clients must show a certificate that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    address: str = DEFAULT_ADDRESS  # HOST:PORT, port 0 for any that is free, or unix:PATH
    device_id: int = 1
    tls: TlsFiles | None = None
    max_message_bytes: int = 64 << 20  # some 400,000 entries in one Write
    idle_scan_s: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.device_id < 1 << 64:
            raise DinnetError(f"device id {self.device_id}: it must be above zero and fit in 64 bits")


@dataclass(frozen=True, slots=True)
class RunningServer:
    address: str  # with the port that was free
    service: P4RuntimeService


@asynccontextmanager
async def serving(target: Target, options: ServerOptions | None = None) -> AsyncIterator[RunningServer]:
    """Serve a target until the block ends; the target then tells no more, and goes on forwarding.

    Raises:
        DinnetError: The address cannot be listened on, or a certificate cannot be read.
    """
    options = options or ServerOptions()
    credentials = _credentials(options.tls) if options.tls is not None else None
    server = grpc.aio.server(
        maximum_concurrent_rpcs=MAX_CALLS,
        options=[
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
            # A controller whose machine is gone says nothing; its place must become free all the same.
            ("grpc.keepalive_time_ms", 15_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            # Controllers that keep their streams open all day ping to find out whether the switch is there.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ],
    )
    service = P4RuntimeService(target, options.device_id)
    scanner = None
    try:
        p4r_grpc.add_P4RuntimeServicer_to_server(service, server)
        address = _listen(server, options.address, credentials)
        await server.start()
        scanner = asyncio.create_task(_scan_idle(target, options.idle_scan_s))
        yield RunningServer(address, service)
    finally:
        if scanner is not None:
            scanner.cancel()
            with suppress(asyncio.CancelledError):
                await scanner
        await server.stop(CLOSING_S)
        target.stop()


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> str:
    try:
        if credentials is not None:
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise DinnetError(f"{address}: cannot listen there; is the address in use, or not this machine's?") from error
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(_read(tls.key), _read(tls.cert))],
        root_certificates=_read(tls.client_ca) if tls.client_ca is not None else None,
        require_client_auth=tls.client_ca is not None,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DinnetError(f"{path}: cannot read: {reason(error)}") from error


async def _scan_idle(target: Target, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        target.scan_idle()
