"""Record what passes an interface into a capture file, with tcpdump."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError
from dinnet.testbed.network import require_root
from dinnet.testbed.process import Child, fork

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
    log.unlink(missing_ok=True)

    def become_tcpdump() -> None:
        os.setsid()  # Ctrl-C is for us: tcpdump is stopped when its buffer is empty
        os.execvp(command[0], [*command, "-w", str(capture)])

    process = fork("tcpdump", namespace, log, become_tcpdump)
    recorded = Recorded()
    try:
        _wait_until_listening(process, log)
        yield recorded
        _drain(process, log)
    finally:
        process.stop(grace_s=10.0)  # on SIGTERM tcpdump writes what it holds, and its counts
    counts = {what: int(number) for number, what in _FINAL.findall(_text(log))}
    if process.status != 0 or "captured" not in counts:
        raise DinnetError(f"{capture}: tcpdump failed: {_last_line(log)}")
    recorded.frames = counts["captured"]
    recorded.dropped = counts.get("dropped by kernel", 0)
    log.unlink()


def _wait_until_listening(process: Child, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while "listening on" not in _text(log):
        if process.poll() is not None or time.monotonic() > deadline:
            raise DinnetError(f"tcpdump did not start: {_last_line(log) or f'no word within {_START_S:.0f} s'}")
        time.sleep(_POLL_S)


def _drain(process: Child, log: Path) -> None:
    """Wait until tcpdump has written what the kernel holds for it.

    The kernel hands packets over by blocks, up to a second late, and a block that is not full is lost at the end.
    On SIGUSR1 tcpdump tells both counts.
    """
    deadline = time.monotonic() + _DRAIN_S
    asked = 0
    while process.poll() is None and time.monotonic() < deadline:
        os.kill(process.pid, signal.SIGUSR1)
        asked += 1
        answers: list[tuple[str, str, str]] = []
        while len(answers) < asked and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            answers = _COUNTS.findall(_text(log))
        if answers and int(answers[-1][0]) >= int(answers[-1][1]):
            return


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _last_line(log: Path) -> str:
    lines = _text(log).strip().splitlines()
    return lines[-1] if lines else ""
