"""Child processes in network namespaces that never outlive the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dinnet.netns import inside

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_POLL_S: Final = 0.01
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_libc = ctypes.CDLL(None, use_errno=True)


def precise_timers() -> None:
    """Let the kernel wake this thread within a microsecond of a timeout, not its usual fifty."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


@dataclass
class Child:
    """A forked process. `log` holds its standard error, with the traceback where it failed."""

    pid: int
    name: str
    log: Path
    status: int | None = None  # exit code, or minus the signal that ended it; None while it runs

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, or None where the process still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.status

    def stop(self, grace_s: float = 1.0) -> None:
        """End the process: SIGTERM, and SIGKILL where it does not follow."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            if self.wait(grace_s) is None:
                os.kill(self.pid, signal.SIGKILL)
                self.wait(10.0)

    def last_words(self) -> str:
        """The last line of the log: the exception's own line where the process failed."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def stop_all(children: list[Child]) -> None:
    """End many processes at once, so that their graces run side by side."""
    for child in children:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGTERM)
    for child in children:
        child.stop()


def start_dinnet(name: str, log: Path, *arguments: str) -> Child:
    """Run one of dinnet's own commands in a child that, too, ends with its parent."""
    command = [sys.executable, "-m", "dinnet", *arguments]
    return fork(name, "", log, lambda: os.execv(command[0], command))


def fork(name: str, namespace: str, log: Path, work: Callable[[], None]) -> Child:
    """Run `work` in a child in `namespace` ("": its parent's); SIGTERM ends it, and so does the end of its parent.

    A fork and not a new interpreter: a scenario starts some twenty processes, and importing takes longer than
    the connections that they make.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # Python runs functions of its own around a fork, and drops what a signal's handler raises in them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if pid:
        child = Child(pid, name, log)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return child
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its children
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        # Whatever the parent had in their place (a test's capture) writes elsewhere.
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        with inside(namespace) if namespace else contextlib.nullcontext():
            work()
        code = 0
    except BaseException:  # noqa: BLE001 - the child's last act is to say why it failed
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
