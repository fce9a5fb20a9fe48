"""What is committed of the P4 program is what its sources make."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from dinnet.dataplane import p4build
from dinnet.dataplane.digests import DigestDecoder
from dinnet.dataplane.generate import tables_source
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.tables import TABLES


def test_the_build_is_of_these_sources() -> None:
    assert p4build.SOURCES_HASH.read_text().strip() == p4build.sources_hash(), "p4/ has changed: run `make p4`"


def test_the_classes_are_of_this_build() -> None:
    program = dinnet_program()
    assert p4build.TABLES.read_text() == tables_source(program.info, program.device_config)


def test_the_program_has_the_tables_of_the_design() -> None:
    assert {"slice_select", "microflow", "forward_v4", "forward_v6", "forward_l2"} <= TABLES.keys()
    info = dinnet_program().info
    assert info.table("microflow").meter is not None
    assert info.table("microflow").counter is not None
    assert info.table("microflow").has_idle_timeout
    assert [meter.name.rpartition(".")[2] for meter in info.meters.values()] == ["slice_meter"]


def test_a_digest_is_a_flow_record() -> None:
    (digest,) = dinnet_program().info.digests.values()
    assert DigestDecoder(digest).absent == {"tunnel_id"}


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c is not on the PATH")
def test_compiling_again_gives_the_same(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    before = {path.name: path.read_bytes() for path in p4build.BUILD.iterdir()}
    monkeypatch.setattr(p4build, "BUILD", tmp_path)
    monkeypatch.setattr(p4build, "SOURCES_HASH", tmp_path / "sources.sha256")
    monkeypatch.setattr(p4build, "TABLES", tmp_path / "tables.py")
    p4build.build()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in before} == before
