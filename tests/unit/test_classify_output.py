"""A file appears whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dinnet.errors import DinnetError, UsageError
from dinnet.report.output import OutputError, atomic_output


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_there_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    with atomic_output(target) as output:
        output.write(b"one\n")
        assert not target.exists()
        output.write(b"two\n")
    assert target.read_bytes() == b"one\ntwo\n"
    assert listing(tmp_path) == ["rows.csv"]


@pytest.mark.parametrize("failure", [DinnetError("no"), KeyboardInterrupt(), SystemExit(143)])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, failure: BaseException) -> None:
    target = tmp_path / "rows.csv"
    target.write_bytes(b"old")
    with pytest.raises(type(failure)), atomic_output(target) as output:
        output.write(b"new")
        raise failure
    assert target.read_bytes() == b"old"
    assert listing(tmp_path) == ["rows.csv"]


def test_permissions_of_the_old_file_are_kept_and_new_ones_follow_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"")
    old.chmod(0o640)
    mask = os.umask(0o027)
    try:
        for path in (old, new):
            with atomic_output(path) as output:
                output.write(b"x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to("real/rows.csv")
    with atomic_output(link) as output:
        output.write(b"x")
    assert link.is_symlink()
    assert (tmp_path / "real" / "rows.csv").read_bytes() == b"x"


def test_a_device_is_written_to_and_not_replaced() -> None:
    with atomic_output(Path("/dev/null")) as output:
        assert output.write(b"x") == 1
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_missing_folder_is_failed_work_and_a_folder_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"), atomic_output(tmp_path / "no" / "rows.csv"):
        pass
    with pytest.raises(UsageError, match="is a folder"), atomic_output(tmp_path):
        pass
