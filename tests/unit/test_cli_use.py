"""What a careless user gives to each command: one line that says what is wrong, and the right exit code.

0 good, 1 failed work, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from clikit import Done, capture, dinnet_here, write_tiny_model
from labelled_flows import make

from dinnet.errors import DinnetError

Run = Callable[..., Done]

_RECIPE = """
folds: 0
held_out: {transports: ["*/way-3"]}
forest: {trees: 2, depth: 3}
output_forest: {trees: 2, depth: 3}
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good file of each kind that commands take."""
    folder = tmp_path_factory.mktemp("stock")
    write_tiny_model(folder / "model")
    (folder / "a.pcap").write_bytes(capture(4))
    make(1, 60).save(folder / "corpus.npz")
    (folder / "recipe.yaml").write_text(_RECIPE)
    return folder


@pytest.fixture
def run(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line, given as one text; CAPTURE, MODEL and so on are the good files."""
    monkeypatch.chdir(tmp_path)
    names = {"CAPTURE": "a.pcap", "MODEL": "model", "CORPUS": "corpus.npz", "RECIPE": "recipe.yaml"}

    def run_it(line: str, **words: str | Path) -> Done:
        values = {name: stock / file for name, file in names.items()} | words
        return dinnet_here(capfd, *(values.get(word, word) for word in line.split()))

    return run_it


def one_line(done: Done, *codes: int) -> str:
    assert done.code in codes, done
    assert done.out == ""
    assert done.err.startswith("dinnet: error: "), done.err
    assert done.err.count("\n") == 1, done.err
    return done.err


# --- numbers

_PCAP, _LIVE = "classify pcap CAPTURE --model MODEL", "classify live no-such --model MODEL"
_FRACTIONS = [
    (_PCAP, ("--min-confidence", "--idle-timeout", "--active-timeout")),
    (_LIVE, ("--duration", "--min-confidence", "--idle-timeout", "--active-timeout")),
]
_WHOLE = [
    (_PCAP, ("--top", "--workers")),
    (_LIVE, ("--count", "--snaplen", "--ring-mib", "--top")),
    ("train CORPUS --dry-run", ("--seed", "--jobs")),
    ("evaluate CORPUS --model MODEL", ("--threads",)),
]


def _each(table: list[tuple[str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    return [(line, option) for line, options in table for option in options]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "-1", "-1e-9", "ten"])
@pytest.mark.parametrize(("line", "option"), _each(_FRACTIONS))
def test_impossible_fractions(run: Run, line: str, option: str, value: str) -> None:
    one_line(run(f"{line} {option} {value}"), 2)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1.5", "1e3", "ten"])
@pytest.mark.parametrize(("line", "option"), _each(_WHOLE))
def test_impossible_whole_numbers(run: Run, line: str, option: str, value: str) -> None:
    assert option in one_line(run(f"{line} {option} {value}"), 2)


@pytest.mark.parametrize(
    "line",
    [
        f"{_PCAP} -f csv --workers {10**30}",
        f"{_PCAP} --top {10**30}",
        f"{_PCAP} -f csv --idle-timeout 1e-300",
        f"evaluate CORPUS --model MODEL --threads {10**30}",
        f"train CORPUS -c RECIPE --dry-run --jobs {10**30}",
    ],
)
def test_more_than_there_can_be_is_as_much_as_there_is(run: Run, line: str) -> None:
    done = run(line)
    assert done.code == 0, done.err
    assert done.out


def test_a_seed_beyond_32_bits(run: Run) -> None:
    assert "4294967295" in one_line(run(f"train CORPUS --dry-run --seed {2**32}"), 2)


# --- paths

_BAD_PATHS = {
    "loop": "a loop of symbolic links",
    "loop/x": "a loop of symbolic links",
    "x" * 256: "the name is too long",
    "/etc/passwd/x": "a part of the path is a file",
}
_TAKES_A_PATH = (
    "classify pcap BAD --model MODEL",
    "classify pcap CAPTURE --model MODEL -f csv --out BAD",
    "classify pcap CAPTURE --model MODEL -f csv --html BAD",
    "classify pcap CAPTURE --model BAD",
    "classify live lo --model BAD",
    "evaluate BAD --model MODEL",
    "evaluate CORPUS --model BAD",
    "evaluate --other BAD --model MODEL",
    "features explain --model BAD",
    "train BAD",
    "train CORPUS -c BAD",
    "train CORPUS -c RECIPE --out BAD",
    "demo --sample --out BAD",
    "testbed record -c BAD -o out",
    "testbed record -c RECIPE -o out --traces BAD",
    "testbed relabel BAD -o out",
    "testbed demo -c BAD -o out",
    "testbed background BAD -o out.npz",
    "testbed background CAPTURE -o BAD",
    "testbed vllm --python BAD --model MODEL -o out",
    "testbed vllm --python BAD --model BAD -o out",
)
#: Where the message is another one, or the path is a place that something may be put.
_OWN_WORDS = ("--model BAD", "evaluate BAD", "train BAD", "train CORPUS -c BAD", "vllm", "--out BAD", "-o BAD")


@pytest.mark.parametrize("path", _BAD_PATHS, ids=["loop", "in a loop", "too long", "through a file"])
@pytest.mark.parametrize("line", _TAKES_A_PATH)
def test_paths_that_lead_nowhere(run: Run, tmp_path: Path, line: str, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    message = one_line(run(line, BAD=path), 1, 2)
    assert path in message
    if not any(words in line for words in _OWN_WORDS):
        assert _BAD_PATHS[path] in message
    assert [item.name for item in tmp_path.iterdir()] == ["loop"]


@pytest.mark.parametrize(("place", "code"), [("other", 2), ("file", 2), ("loop", 2), ("/proc/x", 1), ("no/" * 3, None)])
def test_where_no_model_can_go_is_told_before_training(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, code: int | None
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")

    def train(*_arguments: object, **_options: object) -> None:
        raise DinnetError("training began")

    monkeypatch.setattr("dinnet.classifier.train.train", train)
    before = sorted(tmp_path.iterdir())
    message = one_line(run(f"train CORPUS -c RECIPE -o {place}"), code or 1)
    assert ("training began" in message) == (code is None)
    assert sorted(tmp_path.iterdir()) == before


# --- model folders that killed runs left


def test_a_new_model_takes_the_place_of_what_a_killed_run_left(run: Run, tmp_path: Path) -> None:
    for name in (".m.abcdefgh", ".m.old_set1", ".n.abcdefgh", ".m.short"):
        (tmp_path / name).mkdir()
    (tmp_path / ".m.abcdefgh" / "forest.npz").write_text("half")
    (tmp_path / ".m.old_set1" / "thesis.tex").write_text("no model at all")
    done = run("train CORPUS -c RECIPE -o m -j 1")
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.old_set1", ".m.short", ".n.abcdefgh", "m"]


def test_the_model_of_a_run_killed_in_the_last_moment_comes_back(tmp_path: Path, stock: Path) -> None:
    from dinnet.cli.train import _cleaned_up

    (stock / "model").rename(tmp_path / ".m.abcdefgh.old")
    try:
        with _cleaned_up(tmp_path / "m"):
            assert (tmp_path / "m" / "model.json").exists()
    finally:
        (tmp_path / "m").rename(stock / "model")


def test_the_folder_of_another_run_stays(tmp_path: Path) -> None:
    from dinnet.cli.train import _cleaned_up

    with _cleaned_up(tmp_path / "m"):
        (tmp_path / ".m.abcdefgh").mkdir()
        with _cleaned_up(tmp_path / "m"):
            assert (tmp_path / ".m.abcdefgh").exists()
    around = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(around, fcntl.LOCK_EX | fcntl.LOCK_NB)  # both have let go
    os.close(around)
    with _cleaned_up(tmp_path / "m"):
        assert not (tmp_path / ".m.abcdefgh").exists()


# --- exit codes

_COMMANDS = {
    "classify pcap CAPTURE --model MODEL": "dinnet.report.inputs.find_captures",
    "classify live lo --model MODEL": "dinnet.capture.live.LiveCapture",
    "train CORPUS": "dinnet.classifier.corpus.load_corpus",
    "evaluate CORPUS --model MODEL": "dinnet.classifier.corpus.load_corpus",
    "features explain --model MODEL": "dinnet.classifier.modelfile.read_model",
    "demo --sample": "dinnet.cli.demo._take_sample",
    "testbed record -c RECIPE -o out": "dinnet.yamlfile.load_yaml",
    "testbed relabel . -o out": "dinnet.testbed.corpus.relabel",
    "testbed demo -c RECIPE -o out": "dinnet.yamlfile.load_yaml",
    "testbed background CAPTURE -o out.npz": "dinnet.report.inputs.find_captures",
    "testbed vllm --python python --model . -o out": "dinnet.testbed.vllm.record_vllm",
    "testbed clean": "dinnet.testbed.network.remove_leftovers",
}


@pytest.mark.parametrize(("line", "function"), _COMMANDS.items())
@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "dinnet: interrupted\n"),
        (DinnetError("no\x1b[31m luck"), 1, "dinnet: error: no\\x1b[31m luck\n"),
        (PermissionError(13, "Permission denied", "a\nb"), 1, "dinnet: error: a\\nb: Permission denied\n"),
        (OSError("odd"), 1, "dinnet: error: odd\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_command_ends_failures_in_a_line_and_a_code(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    function: str,
    failure: BaseException,
    code: int,
    message: str,
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise failure

    # What gives up standard output must not do so for the tests that follow.
    monkeypatch.setattr("dinnet.cli.give_up_output", lambda: None)
    monkeypatch.setattr(function, fail)
    assert run(line) == (code, "", message)


@pytest.mark.parametrize("line", [*_COMMANDS, "", "classify", "features", "testbed"])
def test_each_command_has_help_and_refuses_what_it_does_not_know(run: Run, line: str) -> None:
    done = run(f"{line} --help")
    assert (done.code, done.err) == (0, "")
    assert "Usage: dinnet" in done.out
    assert "--no-such" in one_line(run(f"{line} --no-such"), 2)


@pytest.mark.parametrize("line", ["", "classify", "features", "testbed"])
def test_a_noun_without_a_verb_shows_its_help_and_is_wrong_use(run: Run, line: str) -> None:
    done = run(line)
    assert done.code == 2
    assert "Usage: dinnet" in done.out + done.err


@pytest.mark.parametrize("line", ["no-such", "classify no-such", "testbed no-such", "features explain no-such"])
def test_unknown_words_are_wrong_use(run: Run, line: str) -> None:
    assert "no-such" in one_line(run(line), 2)


# --- network namespaces


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: packet sockets")
@pytest.mark.parametrize(
    ("netns", "code", "words"),
    [
        ("no-such", 1, "no network namespace no-such: `ip netns list`"),
        ("./no-such", 1, "no such file or folder"),
        ("./fifo", 1, "something else than a network namespace"),
        ("./file", 1, "something else than a network namespace"),
        (".", 1, "something else than a network namespace"),
        ("./loop", 1, "a loop of symbolic links"),
        ("./file/x", 1, "a part of the path is a file"),
        ("/proc/self/ns/mnt", 1, "something else than a network namespace"),
        ("/dev/null", 1, "something else than a network namespace"),
        ("x" * 256, 1, "the name is too long"),
        ("", 2, "an empty name"),
    ],
)
def test_what_is_no_network_namespace(run: Run, tmp_path: Path, netns: str, code: int, words: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    assert words in one_line(run("classify live lo --model MODEL --netns WHERE", WHERE=netns), code)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: packet sockets")
def test_this_network_namespace_by_its_path(run: Run) -> None:
    done = run("classify live lo --model MODEL --netns /proc/self/ns/net --duration 0.001 -f ndjson")
    assert done.code == 0, done.err


def test_a_failure_while_entering_a_namespace_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from dinnet.capture import packetsocket

    def fail(_netns: str) -> None:
        raise MemoryError("of the thread")

    monkeypatch.setattr(packetsocket, "_enter", fail)
    with pytest.raises(MemoryError, match="of the thread"):
        packetsocket.open_socket("any", 3)
