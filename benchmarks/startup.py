"""What dinnet adds to Python's own start: the help text, and a small capture once compiled code is cached.

The commands and a bare `python -c pass` take turns; the figure is how much longer than the bare start of
the same round they take. The capture is about 1 MB, seeded; its first reading, which compiles, is not timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import cannot_run, figure, in_turn, report
from synthetic import write_capture

_FLOWS = 100
_BARE = [sys.executable, "-c", "pass"]
_DINNET = [sys.executable, "-m", "dinnet"]


def _run(command: Sequence[str]) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def _seconds(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    _run(command)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--packets", type=int, default=2_000, help="of the capture, 550 bytes each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dinnet-bench-") as folder:
        capture = Path(folder, "small.pcap")
        write_capture(capture, packets=options.packets, flows=_FLOWS)
        size = capture.stat().st_size
        help_text, classify = [*_DINNET, "--help"], [*_DINNET, "classify", "pcap", str(capture)]
        try:
            _run(help_text)
            table = _run(classify)  # compiles, where that has not been done before
        except RuntimeError as error:
            cannot_run(str(error))
        if len(table.splitlines()) < _FLOWS:
            raise SystemExit(f"the capture has {_FLOWS} flows; dinnet printed {len(table.splitlines())} lines")
        bare, *others = in_turn(
            options.rounds, [lambda: _seconds(_BARE), lambda: _seconds(help_text), lambda: _seconds(classify)]
        )
    added = [[total - start for total, start in zip(times, bare, strict=True)] for times in others]
    names = ("startup_help", "startup_small_capture")
    figures = [figure(name, "s more", extra, "python -c pass", bare) for name, extra in zip(names, added, strict=True)]
    report(
        figures,
        [
            f"the capture: {size / 1e6:.2f} MB, {options.packets:,} packets, {_FLOWS} flows; compiled code cached",
            "goals: 0.3 s more for the help text, 1.5 s more for the capture",
        ],
    )


if __name__ == "__main__":
    main()
