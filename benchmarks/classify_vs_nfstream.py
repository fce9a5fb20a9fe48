"""Packets per second from a capture file to flow statistics, against NFStream.

Both read the same file in one process each, with statistics on and the same timeouts, and must find
the same flows and packets. Timed is the work alone: both have their code loaded before. dinnet is
timed twice: up to the flow records, as NFStream, and with the classification of every flow on top.

NFStream needs an environment of its own: --nfstream-python names its interpreter.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from harness import cannot_run, figure, in_turn, report, run_json
from synthetic import write_capture

_NFSTREAM = """
import json, sys, time
from nfstream import NFStreamer
if __name__ == "__main__":
    def run(path):
        flows = packets = 0
        begin = time.perf_counter()
        for flow in NFStreamer(source=path, statistical_analysis=True, n_dissections=0, n_meters=1,
                               idle_timeout=120, active_timeout=1800):
            flows += 1
            packets += flow.bidirectional_packets
        return flows, packets, time.perf_counter() - begin
    run(sys.argv[2])
    flows, packets, seconds = run(sys.argv[1])
    print(json.dumps({"flows": flows, "packets": packets, "seconds": seconds}))
"""


def _run_dinnet(path: Path, warm_up: Path, classify: bool) -> None:
    """The measured child: prints its counts, seconds and peak memory as JSON."""
    from dinnet.flows import read_records

    classifier = None
    if classify:
        from dinnet.classifier import Classifier

        classifier = Classifier.load()

    def run(capture: Path) -> tuple[int, int, float]:
        flows = packets = 0
        begin = time.perf_counter()
        for records in read_records(capture):
            flows += len(records)
            packets += int(records["fwd_packets"].sum()) + int(records["rev_packets"].sum())
            if classifier is not None:
                classifier.classify(records)
        return flows, packets, time.perf_counter() - begin

    run(warm_up)
    flows, packets, seconds = run(path)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"flows": flows, "packets": packets, "seconds": seconds, "peak_mib": peak_mib}))


def _compare(name: str, path: Path, warm_up: Path, nfstream: str, rounds: int) -> tuple[list[dict[str, object]], str]:
    counts: set[tuple[int, int]] = set()
    peaks: list[float] = []

    def measured(command: list[str]) -> float:
        result = run_json(command)
        counts.add((result["flows"], result["packets"]))
        peaks.append(result.get("peak_mib", 0.0))
        return float(result["packets"] / result["seconds"] / 1e6)

    child = [sys.executable, __file__, "--child", str(path), str(warm_up)]
    ours, classified, theirs = in_turn(
        rounds,
        [
            lambda: measured(child),
            lambda: measured([*child, "--classify"]),
            lambda: measured([nfstream, "-c", _NFSTREAM, str(path), str(warm_up)]),
        ],
    )
    if len(counts) != 1:
        raise SystemExit(f"{name}: the two disagree on (flows, packets): {sorted(counts)}")
    flows, packets = counts.pop()
    note = f"{name}: both found {flows:,} flows and {packets:,} packets; dinnet's peak memory {max(peaks):,.0f} MiB"
    return [
        figure(f"{name}: flow records", "million packets/s", ours, "NFStream", theirs),
        figure(f"{name}: flow records and classes", "million packets/s", classified, "NFStream", theirs),
    ], note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nfstream-python", default=sys.executable, help="interpreter that has NFStream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packets", type=int, default=4_000_000, help="of the capture with 20,000 flows")
    parser.add_argument("--many-packets", type=int, default=10_000_000, help="of the capture with 1 million flows")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--classify", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _run_dinnet(*options.child, options.classify)
        return
    try:
        run_json([options.nfstream_python, "-c", "import nfstream, json; print(json.dumps({}))"])
    except (OSError, RuntimeError):
        cannot_run(
            f"{options.nfstream_python} cannot import nfstream (pip install nfstream; name it by --nfstream-python)"
        )
    with tempfile.TemporaryDirectory(prefix="dinnet-bench-") as folder:
        warm_up = Path(folder, "warm-up.pcap")
        write_capture(warm_up, packets=2_000, flows=100)
        figures: list[dict[str, object]] = []
        notes: list[str] = []
        for name, packets, flows in (
            ("20,000 flows", options.packets, 20_000),
            ("1 million flows", options.many_packets, options.many_packets // 10),
        ):
            path = Path(folder, "capture.pcap")
            write_capture(path, packets=packets, flows=flows)
            measured, note = _compare(name, path, warm_up, options.nfstream_python, options.rounds)
            figures += measured
            notes.append(note)
            path.unlink()
        report(figures, notes)


if __name__ == "__main__":
    main()
