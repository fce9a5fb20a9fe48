"""Once it is up, the controller compiles nothing, whatever comes: a compiler takes seconds, a mark milliseconds."""

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
from dinnet.dataplane.digests import DigestDecoder
from dinnet.dataplane.program import dinnet_program
from dinnet.flows import FlowOptions, read_records
from finsy.proto import p4r
import numpy as np
records = np.concatenate([part.copy() for part in read_records(sys.argv[1], options=FlowOptions(emit="all"))])
classifier = Classifier.load()
classifier.warm_up()
(digest,) = dinnet_program().info.digests.values()
decoder = DigestDecoder(digest)
listed = p4r.DigestList(digest_id=digest.id, list_id=7, timestamp=2**62)
for _ in range(3):
    members = listed.data.add().struct.members
    for _ in digest.leaves:
        members.add(bitstring=b"\\1")
with event.install_recorder("numba:compile") as compiled:
    found = set()
    assert len(decoder.decode_list(listed).records) == 3
    for size in (1, 7, 200):
        for start in range(0, len(records), size):
            found |= set(classifier.classify(records[start:start + size])["class_id"].tolist())
print(len(compiled.buffer), *sorted(found))
"""

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")


@pytest.mark.slow
def test_nothing_is_compiled_after_the_warm_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, CAPTURE],
        capture_output=True, text=True, check=True, env={"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    compiled, *classes = map(int, done.stdout.split())
    assert classes == [0, 1, 2, 3, 4]  # every kind of verdict was given
    assert compiled == 0
