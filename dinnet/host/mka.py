"""MACsec keys by MKA (IEEE 802.1X-2010): a configuration for wpa_supplicant, and its process watched."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dinnet.errors import DinnetError, reason
from dinnet.host.macsec import MacsecLink
from dinnet.host.macsec_keys import Secret, hkdf_sha256, read_master

RUN_FOLDER: Final = Path("/run/dinnet/mka")
_SALT: Final = b"dinnet mka 1"
_CAK_BYTES: Final = 16
_CKN_BYTES: Final = 32
_PATIENCE_S: Final = 5.0
_CIPHER: Final = "gcm-aes-128"  # the only one that wpa_supplicant 2.10 takes


def configuration(link: MacsecLink, master: Secret) -> Secret:
    """wpa_supplicant's configuration for a pre-shared CAK; it holds the CAK, so it is a secret itself.

    Raises:
        DinnetError: The link asks for what wpa_supplicant does not do.
    """
    if link.cipher != _CIPHER:
        raise DinnetError(f"link {link.name}: wpa_supplicant's MKA has cipher {_CIPHER} only, not {link.cipher}")
    if link.offload != "off":
        raise DinnetError(f"link {link.name}: wpa_supplicant's MKA does no offload")
    name = link.name.encode()
    cak = hkdf_sha256(master.view, _SALT, b"cak" + name, _CAK_BYTES)
    ckn = hkdf_sha256(master.view, _SALT, b"ckn" + name, _CKN_BYTES)
    lines = [
        "eapol_version=3",
        "ap_scan=0",
        "network={",
        "\tkey_mgmt=NONE",
        "\teapol_flags=0",
        "\tmacsec_policy=1",
        f"\tmacsec_integ_only={int(not link.encrypt)}",
        "\tmacsec_replay_protect=1",
        f"\tmacsec_replay_window={link.replay_window}",
        f"\tmacsec_port={link.port}",
        f"\tmka_cak={cak.hex()}",
        f"\tmka_ckn={ckn.hex()}",
        "}",
        "",
    ]
    return Secret(bytearray("\n".join(lines).encode()))


@contextlib.contextmanager
def supplicant(
    link: MacsecLink, namespace: str | None = None, folder: Path = RUN_FOLDER
) -> Iterator[subprocess.Popen[bytes]]:
    """wpa_supplicant for a link, as long as the block lasts; then it and its configuration are gone.

    Raises:
        DinnetError: It is not installed, the key is not fit, or it cannot be started.
    """
    program = shutil.which("wpa_supplicant", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        raise DinnetError("wpa_supplicant is not installed (Debian: wpasupplicant), and MKA needs it")
    with contextlib.ExitStack() as stack:
        with read_master(link.key_source, link.name) as master, configuration(link, master) as text:
            path = _private_file(folder, link.name, text)
        stack.callback(path.unlink, missing_ok=True)
        command = [program, "-D", "macsec_linux", "-i", link.parent, "-c", str(path)]
        if namespace is not None:
            command = ["ip", "netns", "exec", namespace, *command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=True)
        stack.callback(_end, process)
        yield process


def _private_file(folder: Path, link: str, text: Secret) -> Path:
    """A new file of mode 0600 in a folder of ours of mode 0700."""
    path = folder / f"{link}.conf"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise DinnetError(f"{folder}: is to be a folder of mode 0700 of this user's, for it holds keys")
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(text.view)
    except OSError as error:
        raise DinnetError(f"{path}: cannot write: {reason(error)}") from error
    return path


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
