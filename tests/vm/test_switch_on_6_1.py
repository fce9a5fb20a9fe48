"""The embedded switch on Linux 6.1, the oldest that it is for: Debian 12's own kernel, in a virtual machine.

The verifier of 6.1 refuses much that newer ones let pass, and cannot be asked anywhere else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
import qemu

ROOT = Path(__file__).parents[2]
VECTORS = sorted(path.stem for path in (ROOT / "tests/conformance/vectors").glob("*.json"))
MODULES = ("veth", "sch_ingress", "cls_bpf")
EVERY = 20
"""One in so many golden vectors: all of them would take a quarter of an hour on an emulated processor."""
VERIFIER_LIMIT = 1_000_000
BOUND_S = 280


@pytest.fixture(autouse=True)
def machine() -> None:
    if os.geteuid() != 0:
        pytest.skip("the machine reads this one's files as root")
    try:
        qemu.find_kernel()
    except qemu.GuestError as error:
        pytest.skip(str(error))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(BOUND_S + 20)
def test_switch_does_on_6_1_what_bmv2_did() -> None:
    done = qemu.run(
        [sys.executable, str(ROOT / "tests/vm/play_vectors.py"), str(EVERY)],
        folder=ROOT,
        modules=MODULES,
        environment={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout_s=BOUND_S,
    )
    assert done.code == 0, done.output
    told = json.loads(done.output.splitlines()[-1])
    assert told["release"].startswith("6.1.")
    assert told["queues"] is True
    assert sorted(told["played"]) == VECTORS
    assert sum(told["played"].values()) >= 30
    # Room for what other kernels of that series make of it.
    assert 0 < told["verified"] < VERIFIER_LIMIT // 2


@pytest.mark.root
@pytest.mark.slow
def test_the_machine_tells_how_a_command_ended_and_keeps_what_it_wrote_to_itself(tmp_path: Path) -> None:
    written = tmp_path / "written"
    done = qemu.run(["sh", "-c", 'uname -r; echo x > "$0"; cat "$0"; exit 7', str(written)], folder=ROOT, timeout_s=120)
    assert (done.code, done.output.splitlines()[1]) == (7, "x")
    assert done.output.startswith("6.1.")
    assert not written.exists()


@pytest.mark.root
@pytest.mark.slow
def test_the_machine_is_ended_when_its_time_is_over() -> None:
    def machines() -> int:
        return sum(b"dinnet-vm-" in command(path) for path in Path("/proc").glob("[0-9]*/cmdline"))

    def command(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError:  # has just ended
            return b""

    before, start = machines(), time.monotonic()
    with pytest.raises(qemu.GuestError, match="no end within 3 s"):
        qemu.run(["sleep", "600"], folder=ROOT, timeout_s=3)
    assert time.monotonic() - start < 60
    assert machines() == before


def test_modules_are_loaded_behind_those_that_they_need(tmp_path: Path) -> None:
    folder = tmp_path / "lib/modules/6.1.0"
    (folder / "kernel").mkdir(parents=True)
    (folder / "modules.builtin").write_text("kernel/net/built-in.ko\n")
    for name, needs in {"top": "mid-dle,base", "mid-dle": "base", "base": "built_in"}.items():
        (folder / f"kernel/{name}.ko").write_bytes(b"\x7fELF\0license=GPL\0depends=" + needs.encode() + b"\0name=x\0")
    kernel = qemu.Kernel(tmp_path / "none", folder, tmp_path / "none")
    assert [path.stem for path in qemu.with_dependencies(kernel, ["top", "base"])] == ["base", "mid-dle", "top"]
    with pytest.raises(qemu.GuestError, match="no module other"):
        qemu.with_dependencies(kernel, ["other"])


def test_archive_is_what_cpio_reads() -> None:
    data = qemu.archive([("a", 0o40755, b""), ("a/b", 0o100644, b"12345")])
    # By hand from the description of the format: 110 bytes of head, the name with its 0, filled up to 4 each.
    assert data[:6] == b"070701"
    assert data[112:118] == b"070701"
    assert data[112 + 54 : 112 + 62] == b"00000005"
    assert data[112 + 110 : 112 + 114] == b"a/b\0"
    assert data[112 + 116 : 112 + 124] == b"12345\0\0\0"
    assert len(data) == 112 + 116 + 8 + 124
