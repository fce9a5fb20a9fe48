"""The demo without a testbed: the recorded sample, classified and scored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dinnet.cli import demo

SAMPLE_FLOWS = 100  # at least: all kinds of traffic are in it


def test_sample_is_classified_and_scored(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dinnet", "demo", "--sample", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "classes against the senders' labels" in done.stdout
    score = float(done.stdout.split("macro-F1 over the four classes: ")[1].split()[0])
    assert 0 < score <= 1
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_sample_has_every_kind_of_traffic() -> None:
    from dinnet.flows import read_records
    from dinnet.testbed.labels import join, read_labels

    folder = demo._SAMPLE
    joined = join(read_records(folder / "sample.pcap.zst"), read_labels(folder / "sample.labels.jsonl"), {})
    assert len(joined.labelled) >= SAMPLE_FLOWS
    assert set(joined.labelled.group.tolist()) == {0, 1, 2, 3, 4}
