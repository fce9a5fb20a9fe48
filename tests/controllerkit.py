"""A controller and an embedded switch as processes, on the namespaces of `switchkit.wired`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from namespacekit import until
from switchkit import MACS, SWITCH

PATIENCE_S = 60
REPOSITORY = Path(__file__).parents[1]


def dinnet(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    command = [sys.executable, "-m", "dinnet", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=REPOSITORY, check=False)


class Running:
    """A command that goes on, with what it says in a file."""

    def __init__(self, log: Path, *arguments: str | Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dinnet", *map(str, arguments)],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=REPOSITORY,
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def running(log: Path, *arguments: str | Path) -> Iterator[Running]:
    process = Running(log, *arguments)
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


@contextmanager
def switch(folder: Path, **more: Any) -> Iterator[Path]:
    """The embedded switch on p1 and p2; gives the path of its P4Runtime socket."""
    place, config = folder / "p4rt", folder / "switch.yaml"
    config.write_text(
        json.dumps(
            {
                "netns": SWITCH,
                "ports": {1: "p1", 2: "p2"},
                "p4runtime": {"listen": f"unix:{place}"},
                "tables": {"microflows": 16384, "flows": 16384} | more,
            }
        )
        .replace('"1":', "1:")
        .replace('"2":', "2:")
    )
    with running(folder / "switch.log", "switch", "up", "-c", config) as process:
        try:
            until(lambda: "P4Runtime on" in process.said() or process.process.poll() is not None, "the switch")
            assert process.process.poll() is None, process.said()
            yield place
        finally:
            process.end()
            dinnet("switch", "down", "--netns", SWITCH)


def intent(folder: Path, p4rt: Path | str, **parts: Any) -> dict[str, Any]:
    """Two stations on the switch, and a 100 Mbit/s link behind each port."""
    stations = [{"mac": mac.to_bytes(6).hex(":"), "port": port} for port, mac in enumerate(MACS, start=1)]
    return {
        "controller": {"election_id": 5, "api": f"unix:{folder}/api", "resync_s": 1},
        "switches": {"sw": {"address": f"unix:{p4rt}", "ports": {"1": {}, "2": {}}, "stations": stations}},
        "hosts": {"box": {"netns": SWITCH, "interfaces": ["p1", "p2"]}},
        "links": {
            "left": {"ends": ["box/p1", "sw/1"], "rate": "100mbit"},
            "right": {"ends": ["box/p2", "sw/2"], "rate": "100mbit"},
        },
        **parts,
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    """An intent file; JSON is YAML. Whoever reads it sees the old one or the new one, whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)
    return path


def status(path: Path) -> dict[str, Any] | None:
    """What the controller tells; None: none answers."""
    done = dinnet("controller", "status", "-c", path, "-f", "json")
    return json.loads(done.stdout) if done.returncode == 0 else None


def await_status(path: Path, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def holds() -> bool:
        now = status(path)
        if now is not None and condition(now):
            found.append(now)
        return bool(found)

    until(holds, what)
    return found[0]


def all_in_force(found: dict[str, Any]) -> bool:
    return all(device["in_force"] for device in found["devices"])


def total_changes(found: dict[str, Any]) -> int:
    return sum(device["changes"] for device in found["devices"])
