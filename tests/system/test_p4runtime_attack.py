"""Clients of the P4Runtime server that mean harm: it lives on, answers others, and its memory stays within bounds."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from finsy.proto import p4r, stratum
from google.protobuf.any_pb2 import Any
from p4infokit import TABLES
from p4rtkit import Client, microflows

from dinnet.switch.arbitration import MAX_ROLES
from dinnet.switch.codes import Code
from dinnet.switch.service import MAX_WILDCARDS

MIB = 1 << 20
SERVER = """
import asyncio, sys
from pathlib import Path
from dinnet.switch.memory import MemoryTarget
from dinnet.switch.server import ServerOptions, TlsFiles, serving

async def main():
    tls = TlsFiles(Path(sys.argv[1]), Path(sys.argv[2])) if len(sys.argv) > 1 else None
    async with serving(MemoryTarget(), ServerOptions("127.0.0.1:0", tls=tls)) as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Victim:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.address = process.stdout.readline().strip()
        host, _, port = self.address.rpartition(":")
        self.place = (host, int(port))
        self.resident = self.memory("VmRSS")

    def memory(self, name: str) -> int:
        """Bytes, by /proc/PID/status."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:"))

    def answers(self, credentials: grpc.ChannelCredentials | None = None) -> bool:
        with Client(self.address, credentials=credentials) as client:
            reply = client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=20)
        return bool(reply.p4runtime_api_version)


@contextmanager
def victim(*tls: str) -> Iterator[Victim]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, *tls], stdout=subprocess.PIPE, text=True)
    try:
        yield Victim(process)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_bytes_that_are_no_grpc() -> None:
    chance = random.Random(1)
    openings = [b"", b"GET / HTTP/1.1\r\n\r\n", PREFACE, PREFACE + b"\0\0\0\4\0\0\0\0\0", b"\x16\x03\x01\x02\0\1"]
    with victim() as server:
        for number in range(200):
            with socket.create_connection(server.place) as sock:
                try:
                    sock.sendall(openings[number % len(openings)] + chance.randbytes(chance.choice((10, 5000))))
                except OSError:
                    continue  # closed already
        assert server.answers()
        assert server.memory("VmRSS") < server.resident + 64 * MIB


def test_messages_that_are_too_large_or_nonsense() -> None:
    with victim() as server, Client(server.address) as client:
        call = client.channel.unary_unary("/p4.v1.P4Runtime/Write")
        for size, codes in (
            (65 * MIB, {grpc.StatusCode.RESOURCE_EXHAUSTED}),
            (60 * MIB, {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}),
        ):
            for _ in range(6):
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"\xff" * size, timeout=60)
                assert refused.value.code() in codes
        assert server.answers()
        assert server.memory("VmHWM") < server.resident + 512 * MIB


def test_a_controller_that_never_reads() -> None:
    """It asks for more answers than it takes; its stream ends, and nobody else is held up."""
    count = 20_000
    config = Any()
    config.Pack(stratum.P4RoleConfig(exclusive_p4_ids=range(1 << 24, (1 << 24) + 2000)))  # 8 KB that are echoed
    with victim() as server, Client(server.address) as silent, Client(server.address, 9) as primary:
        primary.arbitrate()
        primary.set_pipeline()
        sent = threading.Event()

        def nag() -> Iterator[p4r.StreamMessageRequest]:
            role = p4r.Role(name="loud", config=config)
            request = p4r.StreamMessageRequest(arbitration=silent.arbitration(role=role))
            for _ in range(count):
                yield request
            sent.set()

        stream = silent.stub.StreamChannel(nag())
        deadline = time.monotonic() + 8
        while not sent.wait(0.1) and stream.is_active() and time.monotonic() < deadline:
            primary.write(*microflows([1]))
            primary.write(*[p4r.Update(type=p4r.Update.DELETE, entity=u.entity) for u in microflows([1])])
        assert server.memory("VmRSS") < server.resident + 128 * MIB
        with pytest.raises(grpc.RpcError) as ended:
            taken = sum(1 for _ in stream)
            raise AssertionError(f"all {taken} were answered")
        assert ended.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.answers()


def test_two_hundred_controllers() -> None:
    with victim() as server, ExitStack() as stack:
        clients = [
            stack.enter_context(Client(server.address, number, role=f"role {number % 4}")) for number in range(200)
        ]
        for client in clients:
            client.send(arbitration=client.arbitration())
        for client in clients:
            assert client.receive("arbitration").device_id == 1
        assert server.answers()
        assert server.memory("VmRSS") < server.resident + 256 * MIB


def test_there_is_an_end_to_roles() -> None:
    """Those that nobody has any more give their place to others."""
    with victim() as server, ExitStack() as stack:
        for number in range(2 * MAX_ROLES):
            with Client(server.address, role=f"gone {number}") as client:
                assert client.arbitrate().status.code == Code.OK
        for number in range(MAX_ROLES - 1):
            client = stack.enter_context(Client(server.address, role=f"live {number}"))
            assert client.arbitrate().status.code == Code.OK
        one_more = stack.enter_context(Client(server.address, role="one more"))
        one_more.send(arbitration=one_more.arbitration())
        assert one_more.closed().code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.answers()


def test_a_read_of_everything_very_often() -> None:
    with victim() as server, Client(server.address) as client:
        client.arbitrate()
        client.set_pipeline()
        client.write(*microflows(range(5000)))
        everything = p4r.Entity(table_entry=p4r.TableEntry(table_id=TABLES["microflow"]))
        assert len(client.read(*[everything] * 2)) == 10_000
        with pytest.raises(grpc.RpcError) as refused:
            client.read(*[everything] * (MAX_WILDCARDS + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        single = p4r.Entity(table_entry=microflows([7])[0].entity.table_entry)
        assert len(client.read(*[single] * (MAX_WILDCARDS + 1))) == MAX_WILDCARDS + 1


def test_half_open_tls_and_slow_senders(tmp_path: Path) -> None:
    """A hundred connections that begin a handshake and go on with a byte now and then."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
         str(key), "-out", str(cert), "-subj", "/CN=test", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with victim(str(cert), str(key)) as server, ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(server.place)) for _ in range(100)]
        for sock in sockets:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        for _ in range(5):
            for sock in sockets:
                sock.sendall(b"\0")
            assert server.answers(credentials)
        assert server.memory("VmRSS") < server.resident + 64 * MIB
