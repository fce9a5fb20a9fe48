"""After its warm-up the classifier compiles nothing, whatever comes: a compiler takes seconds, a mark milliseconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CAPTURE = Path(__file__).parents[2] / "examples" / "sample.pcap.zst"
SCRIPT = """
import sys
from numba.core import event
from dinnet.classifier import Classifier
from dinnet.flows import FlowOptions, read_records
import numpy as np
records = np.concatenate([part.copy() for part in read_records(sys.argv[1], options=FlowOptions(emit="all"))])
classifier = Classifier.load()
classifier.warm_up()
with event.install_recorder("numba:compile") as compiled:
    found = set()
    for size in (1, 7, 200):
        for start in range(0, len(records), size):
            found |= set(classifier.classify(records[start:start + size])["class_id"].tolist())
print(len(compiled.buffer), *sorted(found))
"""


@pytest.mark.slow
def test_nothing_is_compiled_after_the_warm_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, CAPTURE],
        capture_output=True, text=True, check=True, env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    compiled, *classes = map(int, done.stdout.split())
    assert classes == [0, 1, 2, 3, 4]  # every kind of verdict was given
    assert compiled == 0
