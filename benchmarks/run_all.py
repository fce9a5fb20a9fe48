"""Run every benchmark, and append each figure to results.csv with date, machine and versions."""

from __future__ import annotations

import csv
import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness import CANNOT_RUN

_HERE = Path(__file__).resolve().parent
_NOT_BENCHMARKS = {"harness.py", "switchrun.py", "synthetic.py", "run_all.py"}
_COLUMNS = (
    "date", "benchmark", "name", "value", "unit", "peer", "peer_value", "ratio", "rounds",
    "cpu", "cores", "kernel", "python", "numpy", "numba", "scikit-learn",
)  # fmt: skip


def _machine() -> dict[str, object]:
    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    cpu = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line[:10] == "model name"
        ]
        cpu = names[0] if names else cpu
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: installed(name) for name in ("numpy", "numba", "scikit-learn")},
    }


def main() -> int:
    results = _HERE / "results.csv"
    machine = _machine()
    failed = False
    new = not results.exists()
    with results.open("a", newline="") as out:
        table = csv.DictWriter(out, _COLUMNS)
        if new:
            table.writeheader()
        for script in sorted(_HERE.glob("*.py")):
            if script.name in _NOT_BENCHMARKS:
                continue
            print(f"==> {script.name}", flush=True)
            command = [sys.executable, str(script)]
            peer = os.environ.get("NFSTREAM_PYTHON")
            if script.name == "classify_vs_nfstream.py" and peer:
                command += ["--nfstream-python", peer]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            print(done.stdout, end="", flush=True)
            if done.returncode == CANNOT_RUN:
                continue
            if done.returncode != 0:
                failed = True
                continue
            last = json.loads(done.stdout.strip().splitlines()[-1])
            for figure in last.values() if "name" not in last else [last]:
                table.writerow({**machine, "benchmark": script.stem, **figure})
            out.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
