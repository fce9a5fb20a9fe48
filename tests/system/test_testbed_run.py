"""The same traffic with one queue and with slices, over real switches and a real controller."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import switchkit

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")
pytest.importorskip("prometheus_client", reason="needs prometheus-client")

from dinnet.testbed.network import leftovers

pytestmark = [switchkit.needs_bpf, pytest.mark.root, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dinnet", "testbed", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


def test_two_sites_side_by_side(tmp_path: Path) -> None:
    done = run("run", "testbeds/pd_two_site.yaml", "-o", tmp_path, "--duration", "8")
    assert done.returncode == 0, done.stderr
    one, slices = json.loads((tmp_path / "report.json").read_text())["rounds"]
    assert (one["slices"], slices["slices"]) == (False, True)
    for each in (one, slices):
        assert not each["problems"]
        assert each["measures_ms"]["token"]["count"] > 20
        # 5 ms of the link's own, and all of it less than the run.
        assert 5 <= each["measures_ms"]["token"]["p50"] < 8_000
        # 100 Mbit/s, and a burst at the start.
        assert 5e6 < each["carried_bps"]["west-to-east"] < 102e6
    # With one queue nothing is marked; with slices the classes that were marked were carried in their slices.
    assert {each["marked"] for each in one["classes"]} == {"none"}
    marked = sum(each["flows"] for each in slices["classes"] if each["marked"] == each["sent_as"])
    wrong = sum(each["flows"] for each in slices["classes"] if each["marked"] not in (each["sent_as"], "none"))
    assert marked > 5 * wrong
    used = {(each["slice"], each["tc"]) for each in slices["queues"] if each["link"] == "to-east" and each["packets"]}
    assert (3, 1) in used and used & {(1, 1), (1, 2), (1, 3)}
    assert not one["queues"]
    assert "KV hand-off" in done.stdout and "one queue" in done.stdout
    assert not leftovers()


def test_traffic_that_there_is_not_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    text = (ROOT / "testbeds" / "pd_two_site.yaml").read_text().replace("measured/tokens", "measured/nothing")
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = run("run", path, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("there is no workload named 'measured/nothing'")
    assert "Traceback" not in done.stderr


def test_list_names_testbeds_only() -> None:
    done = run("list")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("testbeds/pd_two_site.yaml  5 hosts, 2 switches")
    assert "training" not in done.stdout
