"""finsy's P4Runtime client with the limits that a controller of many entries needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from finsy import GRPCCredentialsTLS
from finsy.p4client import P4Client, P4ClientError
from finsy.p4schema import P4Schema
from finsy.proto import p4r_grpc

#: The p4.Error of every member of a batch comes in one header field: 1,000 of them take about 250 kB.
MAX_METADATA_BYTES: Final = 8 << 20
_OPTIONS: Final = [
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Each client has a connection of its own: one that is broken off is no other's.
    ("grpc.use_local_subchannel_pool", 1),
    # A switch whose machine is gone says nothing.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files. With `cert` and `key` the client shows who it is."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None


class Client(P4Client):
    """One connection."""

    def __init__(self, address: str, tls: ClientTls | None, timeout_s: float) -> None:
        credentials = GRPCCredentialsTLS(cacert=tls.ca, cert=tls.cert, private_key=tls.key) if tls else None
        super().__init__(address, credentials, wait_for_ready=False)
        self._timeout_s = timeout_s

    async def open(
        self, *, schema: P4Schema | None = None, complete_request: Callable[[Any], None] | None = None
    ) -> None:
        """Open the channel; nothing is sent yet."""
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(
                self._address, self._credentials.to_client_credentials(), options=_OPTIONS
            )
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._complete_request = complete_request

    async def call(self, method: str, message: Any) -> Any:
        """A unary call.

        Raises:
            P4ClientError: It failed.
        """
        try:
            return await getattr(self._stub, method)(message, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise P4ClientError(error, method, msg=message) from None

    def stream(self, method: str, message: Any) -> Any:
        """A call that is answered by several messages."""
        return getattr(self._stub, method)(message, timeout=self._timeout_s)
