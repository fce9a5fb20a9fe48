"""A second kernel for tests: Debian's user-mode-linux, which runs as a plain process and has MACsec, netem and more.

`python tests/vm/uml.py COMMAND...` runs one command in it. The root is this machine's file system, read-only, under a
tmpfs: what a test writes is gone when the kernel stops. Only the job's own folder, /run/job inside, is shared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
INSIDE: Final = "DINNET_INSIDE_UML"
"""Set to the results' file in the processes that run on the second kernel."""
MODULES: Final = ("veth", "dummy", "macsec", "gcm", "ctr", "ghash-generic")
"""Loaded by name, so that the kernel need not find them: that takes kmod, which may not be installed."""
_CONSOLE_TAIL_BYTES: Final = 8000

# The overlay must become the root by pivot_root: after a chroot the kernel would look for modules in the old one.
_INIT: Final = """#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs run /run
mkdir -p /dev/pts /dev/shm /run/upper /run/work /run/new /run/job
mount -t devpts pts /dev/pts; mount -t tmpfs shm /dev/shm
for stream in 0 1 2; do ln -sf /proc/self/fd/$stream /dev/$(set -- stdin stdout stderr; shift $stream; echo $1); done
ln -sfn /proc/self/fd /dev/fd
mount -t hostfs -o {job} none /run/job
{python} {loader} {modules} overlay {wanted}
mount -t overlay -o lowerdir=/,upperdir=/run/upper,workdir=/run/work overlay /run/new
for folder in proc sys dev run; do mount --rbind /$folder /run/new/$folder; done
mkdir -p /run/new/lib/modules; ln -sfn {modules} /run/new/lib/modules/{release}
ip link set lo up
cd /run/new && mkdir -p mnt && pivot_root . mnt && cd {cwd} && bash /run/job/command </dev/null >/run/job/output 2>&1
echo $? >/run/job/status
sync
echo o >/proc/sysrq-trigger
sleep 5
"""


@dataclass(frozen=True)
class Ran:
    """How a command on the second kernel ended."""

    status: int | None  # None: the kernel ended or was ended before the command did
    output: str
    console: str
    results: tuple[dict[str, Any], ...] = ()


def home() -> Path | None:
    """The folder where the package was unpacked (DINNET_UML, or what scripts/vm-uml.sh makes); None: nowhere."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dinnet/vm")
    folders = [os.environ.get("DINNET_UML"), Path(os.environ.get("DINNET_VM_CACHE", cached), "uml")]
    return next((Path(f).resolve() for f in folders if f and Path(f, "usr/bin/linux.uml").exists()), None)


def run(
    command: Sequence[str],
    *,
    modules: Sequence[str] = MODULES,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300,
    memory: str = "768M",
) -> Ran:
    """Boot the second kernel, load `modules`, run `command` in the project's folder, and switch it off.

    The command is root there, in the environment given and no more of ours.
    """
    folder = home()
    if folder is None:
        raise FileNotFoundError("user-mode-linux is not here: scripts/vm-uml.sh downloads it")
    release = next((folder / "usr/lib/uml/modules").iterdir())
    with tempfile.TemporaryDirectory(prefix="dinnet-uml-") as name:
        job = Path(name)
        settings = {"PYTHONDONTWRITEBYTECODE": "1", INSIDE: "/run/job/results", **(environment or {})}
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in settings.items())
        (job / "command").write_text(f"{exports}exec {shlex.join(command)}\n")
        init = job / "init"
        places = {"job": name, "modules": str(release), "release": release.name, "cwd": str(ROOT)}
        places |= {"python": sys.executable, "loader": str(Path(__file__).with_name("load_modules.py"))}
        quoted = {key: shlex.quote(value) for key, value in places.items()}
        init.write_text(_INIT.format(**quoted, wanted=shlex.join(modules)))
        init.chmod(0o755)
        console = _boot(folder / "usr/bin/linux.uml", init, job, memory, timeout_s)
        status = _text(job / "status").strip()
        results = [json.loads(line) for line in _text(job / "results").splitlines()]
        return Ran(int(status) if status else None, _text(job / "output"), console, tuple(results))


def _boot(kernel: Path, init: Path, job: Path, memory: str, timeout_s: float) -> str:
    arguments = [
        f"mem={memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "quiet",
        "con=null", "con0=null,fd:1", "con1=null", "umid=guest", f"uml_dir={job}/",
    ]  # fmt: skip
    with (job / "console").open("wb") as console:
        # A session of its own: the kernel is several processes, and all of them must end.
        process = subprocess.Popen(
            [kernel, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", ""), "TMPDIR": str(job), "HOME": str(job)},
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return _text(job / "console")[-_CONSOLE_TAIL_BYTES:]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


class Guest:
    """The tests of one file, run together on the second kernel the first time that one of them is asked for."""

    def __init__(self, file: str, timeout_s: float = 600) -> None:
        self.file = Path(file).resolve()
        self.timeout_s = timeout_s

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        """Decorate a test: itself on the second kernel, here a test that tells how it went there."""
        if os.environ.get(INSIDE):
            return function

        def told() -> None:
            self.tell(function.__name__)

        told.__name__, told.__doc__, told.__module__ = function.__name__, function.__doc__, function.__module__
        return pytest.mark.timeout(self.timeout_s + 60)(told)

    def tell(self, name: str) -> None:
        ran = self.ran()
        mine = [result for result in ran.results if result["name"].split("[")[0] == name]
        for result in mine:
            if result["outcome"] == "failed":
                pytest.fail(f"on the second kernel, {result['name']}:\n{result['text']}", pytrace=False)
        if not mine:
            pytest.fail(f"{name} did not run on the second kernel\n{ran.output[-4000:]}\n{ran.console}", pytrace=False)
        if all(result["outcome"] == "skipped" for result in mine):
            pytest.skip(f"on the second kernel: {mine[0]['text']}")

    @cache  # noqa: B019 - one guest a file, as long as the tests run
    def ran(self) -> Ran:
        if home() is None:
            pytest.skip("no second kernel: scripts/vm-uml.sh downloads Debian's user-mode-linux")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "uml", "-q", str(self.file)]
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(__file__).parent)))
        return run(command, environment={"PYTHONPATH": paths}, timeout_s=self.timeout_s)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """As a plugin on the second kernel: one line of JSON for each outcome."""
    target = os.environ.get(INSIDE)
    if target is None or (report.when != "call" and report.passed):
        return
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    with Path(target).open("a") as results:
        name = report.nodeid.rsplit("::", 1)[-1]
        results.write(json.dumps({"name": name, "outcome": report.outcome, "text": text}) + "\n")


if __name__ == "__main__":
    ended = run(sys.argv[1:], environment={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/vm'}"})
    sys.stdout.write(ended.output)
    if ended.status is None:
        sys.stderr.write(f"the second kernel gave no answer:\n{ended.console}\n")
    sys.exit(1 if ended.status is None else ended.status)
