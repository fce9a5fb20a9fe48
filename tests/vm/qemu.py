"""A command in a virtual machine with Debian 12's own kernel, for what this machine's kernel cannot show.

The machine is emulated (no KVM, which is seldom to be had in CI), starts from an initramfs made here, and sees this
machine's files: read only, under a layer of memory that takes all writing. `scripts/vm-qemu.sh` brings what it needs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "DINNET_VM_KERNEL"
HOW = "run scripts/vm-qemu.sh"
QEMU = "qemu-system-x86_64"
MEMORY_MB = 1536
NEEDED = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""What the initramfs loads to reach the files."""
START = """#!/bin/busybox sh
/bin/busybox --install -s /bin
set -e
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro files /files
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/files,upperdir=/memory/upper,workdir=/memory/work overlay /root
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t bpf bpf /root/sys/fs/bpf
mount --move /dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run
mkdir /root/run/job
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none job /root/run/job
umount /proc
exec switch_root /root /bin/sh /run/job/work
"""
WORK = """export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
ln -s /proc/self/fd /dev/fd
ip link set lo up
cut -d' ' -f1 /proc/uptime >/run/job/boot_s
cd {folder}
env {environment} {command} >/run/job/output 2>&1 </dev/null
echo $? >/run/job/code
echo b >/proc/sysrq-trigger
"""


class GuestError(RuntimeError):
    """The machine is not to be had, or did not come to an end of its own."""


@dataclass(frozen=True)
class Kernel:
    """A kernel as its package holds it, and a static busybox."""

    image: Path
    modules: Path
    busybox: Path

    @property
    def release(self) -> str:
        return self.modules.name


@dataclass(frozen=True)
class Done:
    """What came of a command: its exit code, all it wrote, and how long (seconds) the boot and everything took."""

    code: int
    output: str
    boot_s: float
    total_s: float


def home() -> Path:
    """Where the kernel is: DINNET_VM_KERNEL (as unpacked from its package), or what scripts/vm-qemu.sh makes."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dinnet/vm")
    return Path(os.environ.get("DINNET_VM_CACHE") or cached, "linux")


def find_kernel() -> Kernel:
    """The kernel that the tests run on.

    Raises:
        GuestError: Something is missing: what, and how to get it.
    """
    folder = home()
    if shutil.which(QEMU) is None:
        raise GuestError(f"{QEMU} is not installed ({HOW})")
    images = sorted(folder.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        raise GuestError(f"{folder} holds {'no' if not images else 'more than one'} boot/vmlinuz-* ({HOW})")
    own = folder / "bin/busybox"
    busybox = str(own) if own.exists() else shutil.which("busybox")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes():
        raise GuestError(f"no static busybox, neither {own} nor on the PATH ({HOW})")
    release = images[0].name.removeprefix("vmlinuz-")
    return Kernel(images[0], folder / "lib/modules" / release, Path(busybox))


def with_dependencies(kernel: Kernel, names: Iterable[str]) -> list[Path]:
    """The files of modules and of those that they need, each behind what it needs; what is built in is left out.

    Modules say themselves what they need, so that neither depmod nor its files need be there.

    Raises:
        GuestError: The kernel has no such module.
    """
    builtin = (kernel.modules / "modules.builtin").read_text()
    files = {path.stem.replace("-", "_"): path for path in kernel.modules.rglob("*.ko")}
    found: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in found or re.search(rf"/{name.replace('_', '[-_]')}\.ko$", builtin, re.MULTILINE):
            return
        if name not in files:
            raise GuestError(f"Linux {kernel.release} has no module {name} in {kernel.modules}")
        depends = re.search(rb"\0depends=([^\0]*)\0", files[name].read_bytes())
        for needed in depends[1].decode().split(",") if depends else ():
            if needed:
                add(needed.replace("-", "_"))
        found[name] = files[name]

    for name in names:
        add(name.replace("-", "_"))
    return list(found.values())


def archive(members: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An initramfs of (path, mode, content): the cpio format "newc" (Linux: buffer-format.rst), not compressed."""

    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 4)

    parts = []
    for number, (name, mode, content) in enumerate([*members, ("TRAILER!!!", 0, b"")], start=1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        parts += [padded(b"070701" + b"".join(b"%08X" % field for field in fields) + path), padded(content)]
    return b"".join(parts)


def initramfs(kernel: Kernel, modules: Sequence[str]) -> bytes:
    """The archive that the machine starts from."""
    program, folder = stat.S_IFREG | 0o755, stat.S_IFDIR | 0o755
    folders = ("bin", "modules", "proc", "dev", "files", "memory", "root")
    loaded = with_dependencies(kernel, [*NEEDED, *modules])
    return archive(
        [
            *((name, folder, b"") for name in folders),
            ("init", program, START.encode()),
            ("bin/busybox", program, kernel.busybox.read_bytes()),
            *((f"modules/{i:03}-{path.name}", program, path.read_bytes()) for i, path in enumerate(loaded)),
        ]
    )


def run(
    command: Sequence[str],
    *,
    folder: Path,
    modules: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout_s: float,
) -> Done:
    """Run a command as root in a fresh machine with two CPUs, in `folder`, with `modules` loaded.

    Raises:
        GuestError: Something is missing, or the command had no end in time; with the end of what was written.
    """
    kernel = find_kernel()
    with tempfile.TemporaryDirectory(prefix="dinnet-vm-") as name:
        place = Path(name)
        job = place / "job"
        job.mkdir()
        (place / "initramfs").write_bytes(initramfs(kernel, modules))
        (job / "work").write_text(
            WORK.format(
                folder=shlex.quote(str(folder)),
                environment=shlex.join(f"{key}={value}" for key, value in (environment or {}).items()),
                command=shlex.join(command),
            )
        )
        start, late = time.monotonic(), ""
        try:
            subprocess.run(machine(kernel, place, job), stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            late = f"no end within {timeout_s:g} s"
        total_s = time.monotonic() - start

        def told(path: Path) -> str:
            return path.read_text(errors="replace") if path.exists() else ""

        output = told(job / "output")
        if late or not told(job / "code"):
            end = (told(place / "console") + output)[-4000:]
            raise GuestError(f"{late or 'the machine stopped before the command ended'}:\n{end}")
        return Done(int(told(job / "code")), output, float(told(job / "boot_s")), total_s)


def machine(kernel: Kernel, place: Path, job: Path) -> list[str]:
    """QEMU's command line. The machine ends with whoever started it, whatever ends that."""
    share = "security_model=none,multidevs=remap"
    return [
        "setpriv", "--pdeathsig", "KILL", "--",
        QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MB),
        "-kernel", str(kernel.image), "-initrd", str(place / "initramfs"),
        "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
        "-serial", f"file:{place / 'console'}",
        "-virtfs", f"local,path=/,mount_tag=files,readonly=on,{share}",
        "-virtfs", f"local,path={job},mount_tag=job,{share}",
    ]  # fmt: skip
