"""Derivation against RFC 5869, and which key files are taken."""

from __future__ import annotations

import copy
import os
import pickle
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from dinnet.errors import DinnetError
from dinnet.host.macsec_keys import KeyName, Secret, derive, hkdf_sha256, read_master

KEY = "00112233445566778899aabbccddeeff" * 2


@pytest.mark.parametrize(
    ("material", "salt", "info", "length", "output"),
    [  # RFC 5869 appendices A.1 to A.3
        (
            "0b" * 22,
            "000102030405060708090a0b0c",
            "f0f1f2f3f4f5f6f7f8f9",
            42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x00, 0x50)).hex(),
            bytes(range(0x60, 0xB0)).hex(),
            bytes(range(0xB0, 0x100)).hex(),
            82,
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
            "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            "0b" * 22,
            "",
            "",
            42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_gives_the_rfcs_vectors(material: str, salt: str, info: str, length: int, output: str) -> None:
    given = [bytes.fromhex(text) for text in (material, salt, info)]
    assert hkdf_sha256(*given, length).hex() == output


@pytest.mark.parametrize("length", [0, -1, 8161])
def test_hkdf_refuses_impossible_lengths(length: int) -> None:
    with pytest.raises(ValueError, match="8160"):
        hkdf_sha256(b"x", b"", b"", length)


NAME = KeyName("a-b", "gcm-aes-256", 0x0200_0000_000A_0001, 0x0200_0000_000B_0001, bytes(16), bytes([1] * 16), 7)


def test_every_part_of_a_name_changes_the_key() -> None:
    others = [
        replace(NAME, link="a-bg"),
        replace(NAME, link="a-", cipher="bgcm-aes-256"),
        replace(NAME, cipher="gcm-aes-xpn-256"),
        replace(NAME, sender=NAME.receiver, receiver=NAME.sender),
        replace(NAME, sender_generation=bytes([2] * 16)),
        replace(NAME, receiver_generation=bytes([2] * 16)),
        replace(NAME, sender_generation=NAME.receiver_generation, receiver_generation=NAME.sender_generation),
        replace(NAME, number=8),
        replace(NAME, number=11),  # the same association
    ]
    master = Secret(bytearray(range(32)))
    keys = [derive(master, name, 32, extended=True) for name in [NAME, *others]]
    seen = {bytes(key.key.view) for key in keys} | {key.key_id for key in keys} | {key.salt for key in keys}
    assert len(seen) == 3 * len(keys)
    assert {len(key.key.view) for key in keys} == {32}


def test_a_secret_does_not_show_and_can_be_wiped() -> None:
    secret = Secret(bytearray(b"K" * 32))
    assert "K" * 4 not in repr(secret) + str(secret) + f"{secret}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        copy.copy(secret)
    with secret:
        pass
    assert bytes(secret.view) == bytes(32)


def _file(path: Path, text: str = KEY + "\n", mode: int = 0o600) -> Path:
    path.touch()
    path.chmod(mode)
    path.write_text(text)
    return path


def test_a_good_file_and_a_good_folder(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    file = _file(folder / "a-b.key")
    for source in (file, folder):
        assert bytes(read_master(source, "a-b").view).hex() == KEY
    file.chmod(0o400)
    assert bytes(read_master(folder, "a-b").view).hex() == KEY
    with pytest.raises(DinnetError, match=r"other\.key: cannot open the key: no such file"):
        read_master(folder, "other")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o777, 0o700])
def test_a_file_for_others_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(DinnetError, match=f"mode {mode:04o}.*chmod 600"):
        read_master(_file(tmp_path / "k", mode=mode), "a-b")


def test_links_in_the_way_are_refused(tmp_path: Path) -> None:
    file = _file(tmp_path / "k")
    (tmp_path / "soft").symlink_to(file)
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    _file(real / "k")
    (tmp_path / "folder").symlink_to(real)
    for source in (tmp_path / "soft", tmp_path / "folder", tmp_path / "folder" / "k"):
        with pytest.raises(DinnetError, match="a symbolic link"):
            read_master(source, "a-b")
    (tmp_path / "hard").hardlink_to(file)
    with pytest.raises(DinnetError, match="2 names"):
        read_master(file, "a-b")


def test_folders_that_others_can_change_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    file = _file(folder / "a-b.key")
    folder.chmod(0o755)
    with pytest.raises(DinnetError, match="chmod 700"):
        read_master(folder, "a-b")
    folder.chmod(0o770)
    with pytest.raises(DinnetError, match="others may write"):
        read_master(file, "a-b")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_another_users_file_or_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    file = _file(folder / "k")
    os.chown(file, 12345, 12345)
    with pytest.raises(DinnetError, match="belongs to user 12345"):
        read_master(file, "a-b")
    os.chown(file, 0, 0)
    os.chown(folder, 12345, 12345)
    with pytest.raises(DinnetError, match="belongs to user 12345"):
        read_master(file, "a-b")


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "k", 0o600)
    with pytest.raises(DinnetError, match="file or folder"):
        read_master(tmp_path / "k", "a-b")


@pytest.mark.parametrize(
    "text",
    ["", "\n", KEY[:-1], KEY[:62], KEY + "zz", "xyz" * 30, KEY * 2 + "00", KEY * 9, "00" * 32, "ab" * 32, "\0" * 64],
)
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(DinnetError) as caught:
        read_master(_file(tmp_path / "k", text), "a-b")
    shown = str(caught.value).replace(str(tmp_path), "")
    assert KEY[:8] not in shown and "xyz" not in shown and len(shown.splitlines()) == 1


def test_the_longest_key(tmp_path: Path) -> None:
    key = secrets.token_hex(64)
    assert bytes(read_master(_file(tmp_path / "k", key.upper()), "a-b").view).hex() == key
