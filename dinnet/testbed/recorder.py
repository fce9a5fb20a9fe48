"""Record what passes an interface into a capture file, with tcpdump."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError
from dinnet.testbed.network import require_root
from dinnet.testbed.process import inside

SNAPLEN: Final = 160  # the longest headers that the testbed sends, and no payload to speak of
_BUFFER_KIB: Final = 64 * 1024
_START_S: Final = 10.0
_DRAIN_S: Final = 5.0
_POLL_S: Final = 0.05
_COUNTS: Final = re.compile(r"(\d+) packets? captured, (\d+) packets? received by filter, (\d+) packets? dropped")
_FINAL: Final = re.compile(r"(\d+) packets? (captured|received by filter|dropped by kernel)")


@dataclass
class Recorded:
    """What a recorder counted; zero until it has been stopped."""

    frames: int = 0
    dropped: int = 0  # by the kernel, for want of buffer


@contextlib.contextmanager
def record(namespace: str, interface: str, capture: Path) -> Iterator[Recorded]:
    """Record `interface` of `namespace` to a pcap file while the block runs; its counts are set afterwards.

    Raises:
        DinnetError: tcpdump is missing, does not start, or cannot write the file.
    """
    require_root("tcpdump")
    log = capture.with_name(capture.name + ".tcpdump")
    command = ["tcpdump", "-i", interface, "-n", "-s", str(SNAPLEN), "-B", str(_BUFFER_KIB), "-Z", "root"]
    with log.open("w") as errors, inside(namespace):
        process = subprocess.Popen(
            [*command, "-w", str(capture)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us: tcpdump is stopped when its buffer is empty
        )
    recorded = Recorded()
    try:
        _wait_until_listening(process, log)
        yield recorded
        _drain(process, log)
        process.send_signal(signal.SIGINT)
        process.wait(10.0)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    counts = {what: int(number) for number, what in _FINAL.findall(log.read_text())}
    if process.returncode != 0 or "captured" not in counts:
        raise DinnetError(f"{capture}: tcpdump failed: {_last_line(log)}")
    recorded.frames = counts["captured"]
    recorded.dropped = counts.get("dropped by kernel", 0)
    log.unlink()


def _wait_until_listening(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while "listening on" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise DinnetError(f"tcpdump did not start: {_last_line(log) or f'no word within {_START_S:.0f} s'}")
        time.sleep(_POLL_S)


def _drain(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until tcpdump has written what the kernel holds for it.

    The kernel hands packets over by blocks, up to a second late, and a block that is not full is lost at the end.
    On SIGUSR1 tcpdump tells both counts.
    """
    deadline = time.monotonic() + _DRAIN_S
    asked = 0
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGUSR1)
        asked += 1
        answers: list[tuple[str, str, str]] = []
        while len(answers) < asked and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            answers = _COUNTS.findall(log.read_text())
        if answers and int(answers[-1][0]) >= int(answers[-1][1]):
            return


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
