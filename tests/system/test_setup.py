"""scripts/setup.sh on a small project of its own: what is missing, interrupted, offline, moved, or not its to remove.

The interpreter, venv and pip are real; the project needs nothing, so that no network is needed. The programs on PATH
are chosen one by one. apt-get is never the real one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # an environment takes seconds to make
pytest.importorskip("ensurepip", reason="needs an interpreter that can make environments")

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"
TOOLS = ("dirname", "cat", "cksum", "rm", "mkdir", "sleep")

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1"
optional-dependencies = { dev = [], inference = [] }
"""

#: A build backend that needs nothing. It waits for as long as there is a file named "wait".
BACKEND = """
import os, pathlib, time, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    while os.path.exists("wait"):
        pathlib.Path("waiting").touch()
        time.sleep(0.05)
    name = "small-1-py3-none-any.whl"
    files = {
        "small-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n"
        "Provides-Extra: dev\\nProvides-Extra: inference\\n",
        "small-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "small.pth": os.getcwd() + "\\n",
    }
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr("small-1.dist-info/RECORD", "".join(f"{path},,\\n" for path in files))
    return name
"""


class Project:
    """A clone that holds nothing but what setup.sh looks at, and the programs that it may find."""

    def __init__(self, folder: Path, user: int) -> None:
        self.folder = folder / "clone"
        self.programs = folder / "programs"
        self.environment = {"PATH": str(self.programs), "HOME": str(folder), "PIP_NO_INDEX": "1"}
        self.environment["P4RUNTIME_SH"] = "given"  # so that no environment is made for it
        (self.folder / "scripts").mkdir(parents=True)
        shutil.copy(SETUP, self.folder / "scripts")
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "constraints.txt").touch()
        self.programs.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.programs / tool).symlink_to(found)
        self.program("python3", f'exec "{sys.executable}" "$@"')
        self.program("id", f"echo {user}")
        self.program("apt-get", f'echo "$@" >>"{folder}/apt"\nexit 100')
        self.apt = folder / "apt"

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def start(self, *what: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/sh", "scripts/setup.sh", *what], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, *what: str) -> tuple[int, str, str]:
        with self.start(*what) as running:
            out, err = running.communicate(timeout=240)
        return running.returncode, out, err

    def have_all_programs(self) -> None:
        for name in ("ip", "ethtool", "tcpdump", "ping", "tshark"):
            self.program(name, "exit 1")

    def start_and_wait_for_pip(self) -> subprocess.Popen[str]:
        (self.folder / "wait").touch()
        running = self.start("test")
        deadline = time.monotonic() + 200
        while not (self.folder / "waiting").exists():
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return running

    def kill(self, running: subprocess.Popen[str]) -> None:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        (self.folder / "wait").unlink()

    def works(self) -> bool:
        code = "import importlib.metadata; importlib.metadata.version('small')"
        return subprocess.run([self.venv / "bin" / "python", "-c", code], check=False).returncode == 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, user=1000)


def test_everything_there_is_installed_once_and_says_nothing_again(project: Project) -> None:
    project.have_all_programs()
    code, out, _ = project.run("test")
    assert (code, out) == (0, "==> installing dinnet and its Python packages into .venv\n")
    assert project.works()
    # Offline and without an interpreter on PATH: nothing is missing, so nothing is done.
    (project.programs / "python3").unlink()
    assert project.run("test") == (0, "", "")
    assert project.run("demo") == (0, "", "")
    assert not project.apt.exists()


def test_p4runtime_shell_has_an_environment_of_its_own_and_is_not_needed(project: Project) -> None:
    project.have_all_programs()
    assert project.run("test")[0] == 0
    del project.environment["P4RUNTIME_SH"]
    shell = project.folder / ".venv-p4rt"
    assert project.run("demo") == (0, "", "")
    assert not shell.exists()
    # Offline it goes on without, says why, and tries again.
    for _ in range(2):
        code, out, _ = project.run("test")
        assert code == 0
        assert out.splitlines() == [
            "==> installing p4runtime-shell into .venv-p4rt",
            "==> p4runtime-shell could not be installed (.venv-p4rt/.log says why): the tests with it are skipped",
        ]
        assert "p4runtime-shell" in (shell / ".log").read_text()
    # Once installed it is left alone.
    (shell / ".installed").write_text("p4runtime-shell==0.0.6 protobuf==3.20.3\n")
    assert project.run("test") == (0, "", "")
    # And so is somebody else's folder.
    (shell / ".installed").unlink()
    assert project.run("test")[1].startswith("==> .venv-p4rt is not this script's")
    assert (shell / ".log").exists()


def test_missing_programs_are_named_without_root(project: Project) -> None:
    code, out, _ = project.run("test")
    named = out.splitlines()[0]
    assert code == 0
    assert named.startswith("==> missing, and not installed without root and apt-get:")
    assert "tshark" in named
    assert project.works()
    assert "tshark" not in project.run("demo")[1]
    assert not project.apt.exists()


def test_programs_outside_a_plain_users_path_are_found(project: Project) -> None:
    if not Path("/usr/sbin/ip").exists():
        pytest.skip("needs ip in /usr/sbin")
    assert "iproute2" not in project.run("demo")[1]


def test_a_failing_apt_get_is_no_end(tmp_path: Path) -> None:
    project = Project(tmp_path, user=0)
    code, out, _ = project.run("test")
    assert code == 0
    assert "==> could not be installed:" in out
    calls = project.apt.read_text().splitlines()
    assert "update" in calls[0]
    assert any(call.endswith("tshark") for call in calls)  # tried although those before it failed
    assert project.works()


@pytest.mark.parametrize("user", [0, 1000])
def test_no_venv_module_is_said_and_leaves_nothing(tmp_path: Path, user: int) -> None:
    project = Project(tmp_path, user)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "ensurepip.py").write_text("raise ImportError('as on a Debian without python3-venv')")
    project.environment["PYTHONPATH"] = str(tmp_path / "hidden")
    code, out, err = project.run("demo")
    assert code == 1
    assert "python3-venv" in out
    assert (
        err
        == "setup: python3 is no Python 3.11 or newer with venv (Debian: python3-venv); name another one by PYTHON=\n"
    )
    assert not project.venv.exists()


def test_an_interrupted_installation_is_begun_anew(project: Project) -> None:
    project.have_all_programs()
    project.kill(project.start_and_wait_for_pip())
    assert project.venv.exists()
    assert not project.works()
    (project.venv / "half").touch()
    code, out, err = project.run("test")
    assert (code, err) == (0, "")
    assert "making it anew" in out
    assert project.works()
    assert not (project.venv / "half").exists()
    assert project.run("test") == (0, "", "")


def test_a_second_run_does_not_disturb_the_first(project: Project) -> None:
    project.have_all_programs()
    first = project.start_and_wait_for_pip()
    code, _, err = project.run("test")
    assert (code, err) == (1, f"setup: process {first.pid} is installing into .venv; wait for its end\n")
    (project.folder / "wait").unlink()
    with first:
        first.communicate(timeout=240)
    assert first.returncode == 0
    assert project.works()


def test_an_interrupted_change_is_not_taken_for_whole(project: Project) -> None:
    project.have_all_programs()
    assert project.run("test")[0] == 0
    (project.folder / "constraints.txt").write_text("six<2\n")
    (project.folder / "waiting").unlink(missing_ok=True)
    project.kill(project.start_and_wait_for_pip())
    (project.folder / "constraints.txt").write_text("")  # as it was when all was whole
    code, out, _ = project.run("test")
    assert (code, out) == (0, "==> installing dinnet and its Python packages into .venv\n")
    assert project.works()


def test_what_pip_cannot_get_is_an_error_until_it_can(project: Project) -> None:
    project.have_all_programs()
    (project.folder / "pyproject.toml").write_text(PROJECT.replace("requires = []", 'requires = ["no-such-thing"]'))
    code, _, err = project.run("test")
    assert code == 1
    assert "no-such-thing" in err
    assert err.splitlines()[-1].startswith("setup: pip could not install into .venv")
    (project.folder / "pyproject.toml").write_text(PROJECT)
    assert project.run("test")[0] == 0
    assert project.works()


def test_a_moved_clone_gets_a_new_environment(project: Project) -> None:
    project.have_all_programs()
    assert project.run("test")[0] == 0
    moved = project.folder.rename(project.folder.with_name("elsewhere"))
    project.folder = moved
    code, out, _ = project.run("test")
    assert code == 0
    assert "making it anew" in out
    assert (project.venv / "bin" / "pip").read_text().startswith(f"#!{moved}")


def test_somebody_elses_environment_is_never_removed(project: Project) -> None:
    project.have_all_programs()
    subprocess.run([sys.executable, "-m", "venv", project.venv], check=True)
    (project.venv / "mine").touch()
    project.kill(project.start_and_wait_for_pip())
    assert project.run("test")[0] == 0
    assert project.works()
    assert (project.venv / "mine").exists()
