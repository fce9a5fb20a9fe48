"""Setting and getting the forwarding pipeline; where the server listens."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r
from p4infokit import ACTIONS, COUNTERS, FLOW_RECORD, TABLES
from p4rtkit import INSERT, Client, entry, microflow, microflows, pipeline_config, running, update

from dinnet.errors import DinnetError
from dinnet.switch.codes import Code
from dinnet.switch.memory import MemoryTarget
from dinnet.switch.server import ServerOptions, TlsFiles

Set = p4r.SetForwardingPipelineConfigRequest
Get = p4r.GetForwardingPipelineConfigRequest


@pytest.fixture
def client() -> Iterator[Client]:
    with running() as server, Client(server.address) as client:
        client.arbitrate()
        yield client


def get(client: Client, response_type: int = Get.ALL) -> p4r.GetForwardingPipelineConfigResponse:
    return client.stub.GetForwardingPipelineConfig(Get(device_id=1, response_type=response_type))


def refusal(client: Client, action: int, config: p4r.ForwardingPipelineConfig | None = None) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        client.set_pipeline(action, config)
    return refused.value.code()


def flows(client: Client) -> int:
    return len(client.read(table_entry=entry("microflow")))


def test_what_is_set_is_got(client: Client) -> None:
    assert not get(client).HasField("config")
    config = pipeline_config(cookie=0)
    client.set_pipeline(config=config)
    assert get(client).config == config
    only = get(client, Get.COOKIE_ONLY).config
    assert only.HasField("cookie") and not only.HasField("p4info") and not only.p4_device_config
    part = get(client, Get.P4INFO_AND_COOKIE).config
    assert part.p4info == config.p4info and not part.p4_device_config
    part = get(client, Get.DEVICE_CONFIG_AND_COOKIE).config
    assert part.p4_device_config == config.p4_device_config and not part.HasField("p4info")
    config.ClearField("cookie")
    client.set_pipeline(config=config)
    assert not get(client, Get.COOKIE_ONLY).config.HasField("cookie")


def test_verify_changes_nothing(client: Client) -> None:
    client.set_pipeline(Set.VERIFY)
    assert not get(client).HasField("config")


def test_commit_clears_the_state(client: Client) -> None:
    client.set_pipeline()
    client.write(*microflows(range(5)))
    client.write(update(INSERT, digest_entry=p4r.DigestEntry(digest_id=FLOW_RECORD)))
    client.set_pipeline()
    assert flows(client) == 0 and client.read(digest_entry=p4r.DigestEntry()) == []


def test_bad_requests(client: Client) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(client, Set.UNSPECIFIED) is invalid
    assert refusal(client, Set.VERIFY_AND_COMMIT, p4r.ForwardingPipelineConfig(p4_device_config=b"x")) is invalid
    broken = pipeline_config()
    broken.p4info.tables[0].match_fields[0].bitwidth = -1
    for action in (Set.VERIFY, Set.VERIFY_AND_SAVE, Set.VERIFY_AND_COMMIT, Set.RECONCILE_AND_COMMIT):
        assert refusal(client, action, broken) is invalid
    assert refusal(client, Set.COMMIT) is grpc.StatusCode.NOT_FOUND
    client.set_pipeline(Set.VERIFY_AND_SAVE)
    assert refusal(client, Set.COMMIT, pipeline_config()) is invalid


def test_a_saved_config_is_committed_with_what_was_written_since() -> None:
    target = MemoryTarget()
    with running(target) as server, Client(server.address) as client:
        client.arbitrate()
        client.set_pipeline()
        client.write(*microflows(range(5)))
        client.set_pipeline(Set.VERIFY_AND_SAVE, pipeline_config(cookie=8))
        assert flows(client) == 0 and get(client).config.cookie.cookie == 8
        assert client.results(*microflows([7, 8, 8])) == [0, 0, Code.ALREADY_EXISTS]
        table = target.info.tables[TABLES["microflow"]]
        assert len(target.entries(table)) == 5  # nothing happened in the data plane yet
        client.set_pipeline(Set.COMMIT)
        assert len(target.entries(table)) == 2 and flows(client) == 2
        assert refusal(client, Set.COMMIT) is grpc.StatusCode.NOT_FOUND


def test_reconcile_keeps_the_state(client: Client) -> None:
    client.set_pipeline(Set.RECONCILE_AND_COMMIT)  # there is nothing to keep
    client.write(*microflows(range(5)))
    client.write(update(INSERT, digest_entry=p4r.DigestEntry(digest_id=FLOW_RECORD)))
    larger = pipeline_config(cookie=9)
    larger.p4info.tables[6].size = 7
    larger.p4info.tables[6].action_refs.add(id=ACTIONS["drop"])
    del larger.p4info.tables[0]  # empty: nobody misses it
    client.set_pipeline(Set.RECONCILE_AND_COMMIT, larger)
    assert flows(client) == 5 and get(client).config.cookie.cookie == 9
    assert len(client.read(digest_entry=p4r.DigestEntry())) == 1
    assert client.results(*microflows([5, 6, 7])) == [0, 0, Code.RESOURCE_EXHAUSTED]


def test_reconcile_refuses_to_lose_anything(client: Client) -> None:
    client.set_pipeline()
    client.write(update(INSERT, table_entry=microflow(1)))
    other_width = pipeline_config()
    other_width.p4info.tables[6].match_fields[6].bitwidth = 21
    other_param = pipeline_config()
    next(a for a in other_param.p4info.actions if a.preamble.id == ACTIONS["set_mark"]).params[2].bitwidth = 16
    gone = pipeline_config()
    gone.p4info.tables[6].preamble.id += 1000
    gone.p4info.direct_counters[1].direct_table_id += 1000
    gone.p4info.direct_meters[0].direct_table_id += 1000
    for config in (other_width, other_param, gone):
        assert refusal(client, Set.RECONCILE_AND_COMMIT, config) is grpc.StatusCode.INVALID_ARGUMENT
    cell = p4r.CounterEntry(
        counter_id=COUNTERS["drops"], index=p4r.Index(index=7), data=p4r.CounterData(packet_count=1)
    )
    client.write(update(p4r.Update.MODIFY, counter_entry=cell))
    smaller = pipeline_config()
    smaller.p4info.counters[0].size = 7
    assert refusal(client, Set.RECONCILE_AND_COMMIT, smaller) is grpc.StatusCode.INVALID_ARGUMENT
    assert flows(client) == 1


def test_a_new_server_adopts_what_the_data_plane_does() -> None:
    target = MemoryTarget()
    with running(target) as server, Client(server.address) as client:
        client.arbitrate()
        client.set_pipeline()
        client.write(*microflows(range(5)))
    with running(target) as server, Client(server.address) as client:
        assert get(client).config == pipeline_config()
        assert flows(client) == 5


def test_capabilities(client: Client) -> None:
    assert client.stub.Capabilities(p4r.CapabilitiesRequest()).p4runtime_api_version == "1.4.1"
    with pytest.raises(grpc.RpcError) as refused:
        client.stub.Capabilities(p4r.CapabilitiesRequest(device_id=3))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_unix_socket(tmp_path: Path) -> None:
    options = ServerOptions(f"unix:{tmp_path}/p4rt.sock")
    with running(options=options) as server, Client(server.address) as client:
        assert client.arbitrate().status.code == Code.OK


def test_an_address_in_use_is_told() -> None:
    refused = pytest.raises(DinnetError, match="cannot listen")
    with running() as server, refused, running(options=ServerOptions(server.address)):
        pass


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates that it signed for a server and a client."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2")
    for name in ("server", "client"):
        san = ["-addext", "subjectAltName=IP:127.0.0.1"]
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", *san)
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", "-days", "2"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return folder


def test_tls_with_client_certificates(pki: Path) -> None:
    tls = TlsFiles(pki / "server.pem", pki / "server.key", pki / "ca.pem")
    ca, key, cert = ((pki / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
    with running(options=ServerOptions("127.0.0.1:0", tls=tls)) as server:
        with Client(server.address, credentials=grpc.ssl_channel_credentials(ca, key, cert)) as client:
            assert client.arbitrate().status.code == Code.OK
        for credentials in (None, grpc.ssl_channel_credentials(ca)):
            with Client(server.address, credentials=credentials) as client, pytest.raises(grpc.RpcError) as refused:
                client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_an_unreadable_certificate_is_told(tmp_path: Path) -> None:
    tls = TlsFiles(tmp_path / "no.pem", tmp_path / "no.key")
    with pytest.raises(DinnetError, match="cannot read"), running(options=ServerOptions("127.0.0.1:0", tls=tls)):
        pass
