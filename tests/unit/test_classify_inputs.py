"""Files, folders and patterns to the list of captures."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinnet.errors import DinnetError, UsageError
from dinnet.report.inputs import find_captures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.pcap",
        "A.PCAPNG",
        "c.cap",
        "deep/er/d.pcap.gz",
        "deep/e.pcapng.zst",
        "notes.txt",
        "deep/x.pcap.bak",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_a_folder_gives_its_captures_whatever_their_case(folder: Path) -> None:
    names = [str(Path(name).relative_to(folder)) for name in find_captures([str(folder)])]
    assert names == ["A.PCAPNG", "b.pcap", "c.cap", "deep/e.pcapng.zst", "deep/er/d.pcap.gz"]


def test_a_named_file_is_taken_whatever_its_name_and_only_once(folder: Path) -> None:
    text, capture = str(folder / "notes.txt"), str(folder / "b.pcap")
    assert find_captures([text, capture, text]) == [text, capture]


def test_patterns(folder: Path) -> None:
    assert find_captures([f"{folder}/*.pcap"]) == [f"{folder}/b.pcap"]
    assert find_captures([f"{folder}/**/*.gz"]) == [f"{folder}/deep/er/d.pcap.gz"]


def test_a_file_whose_name_looks_like_a_pattern(folder: Path) -> None:
    odd = folder / "x[1].pcap"
    odd.touch()
    assert find_captures([str(odd)]) == [str(odd)]


@pytest.mark.parametrize(
    ("name", "words"),
    [("no.pcap", "no such file"), ("*.nothing", "no file matches"), ("empty", "no captures in this folder")],
)
def test_what_is_not_there_is_failed_work(folder: Path, name: str, words: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DinnetError, match=words) as failure:
        find_captures([str(folder / name)])
    assert failure.value.exit_code == 1


def test_an_empty_name_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="empty"):
        find_captures([""])


def test_standard_input_stands_alone() -> None:
    assert find_captures(["-"]) == ["-"]
    with pytest.raises(UsageError, match="cannot be mixed"):
        find_captures(["-", "x.pcap"])
