"""What a careless or hostile user does to the command line: one clear line, the right exit code, nothing lost."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clikit import capture, write_tiny_model

from dinnet.errors import printable

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sample.pcap.zst"
#: The environment of a command; also for those that run in another folder.
PLACE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
#: A name with a byte that is no UTF-8, a colour and a line break.
ODD = "b\udcff\x1b[31m\n.pcap"


def run(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dinnet", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def one_line(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    text = done.stderr.decode()
    assert done.returncode == code, text
    assert text.count("\n") == 1, text
    assert text.startswith("dinnet: error: ")
    return text


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_capture_is_not_written_over(option: str, tmp_path: Path) -> None:
    capture = tmp_path / "a.pcap"
    capture.write_bytes(SAMPLE.read_bytes())
    (tmp_path / "link.pcap").symlink_to(capture)
    done = run("classify", "pcap", "a.pcap", "-f", "csv", option, "link.pcap", cwd=tmp_path)
    assert "is one of the captures" in one_line(done, 2)
    assert capture.read_bytes() == SAMPLE.read_bytes()


def test_a_folder_with_a_fifo_and_a_dangling_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.pcap").symlink_to(SAMPLE)
    os.mkfifo(tmp_path / "waits.pcap")
    (tmp_path / "gone.pcap").symlink_to(tmp_path / "nothing")
    done = run("classify", "pcap", ".", "-f", "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") > 100


def test_an_empty_name_is_wrong_use(tmp_path: Path) -> None:
    assert "empty file name" in one_line(run("classify", "pcap", "", cwd=tmp_path), 2)


def test_a_closed_standard_input_is_wrong_use(tmp_path: Path) -> None:
    script = f"exec {sys.executable} -m dinnet classify pcap - <&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=False, timeout=60, cwd=tmp_path)
    assert "standard input is closed" in one_line(done, 2)


def test_names_with_control_characters_are_shown_escaped(tmp_path: Path) -> None:
    name = "a\n\x1b]0;x\x07.pcap"
    (tmp_path / name).write_bytes(b"garbage that is no capture")
    done = run("classify", "pcap", name, "-f", "csv", cwd=tmp_path)
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr
    assert b"\\x1b" in done.stderr
    assert printable("a\tb\udcff") == "a\\tb\\udcff"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_standard_output_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        command = [sys.executable, "-m", "dinnet", "features", "explain"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


def test_a_demo_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_line(run("demo", "--sample", "--out", "file/x", cwd=tmp_path), 1)


def test_kernels_compile_without_a_place_to_keep_them() -> None:
    # numba finds no place for code that has no source file: as for a service user and a read-only installation.
    space: dict[str, object] = {}
    source = "from dinnet.jit import compiled, compiled_as\n"
    source += "plus = compiled(lambda a: a + 1)\nless = compiled_as('i8(i8)')(lambda a: a - 1)\n"
    exec(compile(source, "<nowhere>", "exec"), space)
    assert space["plus"](1) == 2  # type: ignore[operator]
    assert space["less"](1) == 0  # type: ignore[operator]


# --- closed streams


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a capture of four flows, and a folder of captures with odd names, one of them no capture."""
    folder = tmp_path_factory.mktemp("stock")
    write_tiny_model(folder / "model")
    (folder / "a.pcap").write_bytes(capture(4))
    (folder / "odd").mkdir()
    for name in (ODD, "é.pcap"):
        (folder / "odd" / name).write_bytes(capture(4))
    (folder / "odd" / "g\udcfe\x07.pcap").write_bytes(b"garbage that is no capture")
    return folder


def shell(script: str, stock: Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """`script` with `dinnet`, and $S as the folder of good files; the shell itself says nothing."""
    head = f'dinnet() {{ exec {sys.executable} -m dinnet "$@"; }}\n'
    return subprocess.run(
        ["sh", "-c", head + script],
        capture_output=True,
        check=False,
        timeout=120,
        cwd=cwd,
        env={**PLACE, "S": str(stock)},
    )


_PCAP = "dinnet classify pcap $S/a.pcap --model $S/model"


@pytest.mark.parametrize(
    "script",
    [
        f"{_PCAP} >&-",
        f"{_PCAP} -f csv >&-",
        "dinnet --version >&-",
        "dinnet features explain --model $S/model >&-",
        "dinnet classify live lo --model $S/model >&-",  # it would else listen for good
        "dinnet train no-such.npz -o model >&-",  # and this one train for hours
    ],
)
def test_a_closed_standard_output_is_one_line(stock: Path, tmp_path: Path, script: str) -> None:
    done = shell(script, stock, tmp_path)
    assert "standard output is closed" in one_line(done, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_standard_error_changes_nothing_else(stock: Path, tmp_path: Path) -> None:
    done = shell(f"{_PCAP} -f csv 2>&-", stock, tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 5
    done = shell("dinnet classify pcap no-such.pcap 2>&-", stock, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_nothing_but_the_rows_gets_into_the_files(stock: Path, tmp_path: Path, streams: str) -> None:
    script = f"{_PCAP} $S/odd/g*.pcap --summary -f csv --out rows.csv --html page.html {streams}"
    done = shell(script, stock, tmp_path)
    assert done.returncode == 1  # for the one that is no capture
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(lines) == 5
    assert {line.count(",") for line in lines} == {24}
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "rows.csv"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_messages_that_cannot_be_written_are_no_traceback(stock: Path, tmp_path: Path) -> None:
    done = shell(f"{_PCAP} -f csv no-such.pcap 2>/dev/full", stock, tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")


# --- names that are no text, and terminals that take little


def assert_plain(text: bytes) -> None:
    """No control characters, and nothing that is not UTF-8."""
    assert all(character.isprintable() or character == "\n" for character in text.decode())


def test_odd_names_are_escaped_wherever_people_read_them(stock: Path, tmp_path: Path) -> None:
    done = run(
        *("classify", "pcap", str(stock / "odd"), "--model", str(stock / "model")),
        *("--top", "3", "--summary", "--html", "page\udcff\n.html"),
        cwd=tmp_path,
        env=PLACE,
    )
    assert done.returncode == 1
    assert_plain(done.stdout)
    assert_plain(done.stderr)
    assert rb"b\udcff\x1b[31m\n.pcap" in done.stdout
    assert rb"g\udcfe\x07.pcap is not a pcap" in done.stderr
    assert done.stderr.count(b"\n") == 1
    page = (tmp_path / "page\udcff\n.html").read_bytes()
    assert_plain(page)
    assert rb"b\udcff\x1b[31m\n.pcap" in page


def test_odd_names_are_text_for_programs(stock: Path, tmp_path: Path) -> None:
    arguments = ("classify", "pcap", str(stock / "odd"), "--model", str(stock / "model"), "-f")
    document = json.loads(run(*arguments, "json", cwd=tmp_path, env=PLACE).stdout)
    rows = [json.loads(line) for line in run(*arguments, "ndjson", cwd=tmp_path, env=PLACE).stdout.splitlines()]
    names = [fact["name"] for fact in document["captures"]]
    json.dumps(document, ensure_ascii=False).encode()  # no lone surrogates, which strict parsers refuse
    assert [Path(name).name for name in names] == ["b?\x1b[31m\n.pcap", "g?\x07.pcap", "é.pcap"]
    assert {row["file"] for row in rows} == {row["file"] for row in document["flows"]} == {names[0], names[2]}


def test_an_interface_of_such_a_name_is_not_there(stock: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: packet sockets")
    done = run("classify", "live", "x\udcff\n", "--model", str(stock / "model"), cwd=tmp_path, env=PLACE)
    assert r"no interface x\udcff\n" in one_line(done, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("classify", "pcap", "$S/odd", "--model", "$S/model", "--summary"),
        ("classify", "pcap", "é.pcap"),
        ("classify", "pcap", "--help"),
        ("features", "explain", "--model", "$S/model"),
    ],
)
@pytest.mark.parametrize("encoding", [None, "ascii:strict"])
def test_an_ascii_terminal_gets_ascii(
    stock: Path, tmp_path: Path, arguments: tuple[str, ...], encoding: str | None
) -> None:
    place = {name: value for name, value in PLACE.items() if name not in ("LANG", "PYTHONIOENCODING")}
    place |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    if encoding:
        place["PYTHONIOENCODING"] = encoding
    done = run(*(argument.replace("$S", str(stock)) for argument in arguments), cwd=tmp_path, env=place)
    assert done.returncode == (1 if "pcap" in arguments and "--help" not in arguments else 0)
    assert b"Traceback" not in done.stderr
    for text in (done.stdout, done.stderr):
        assert text.isascii()
        assert_plain(text)
    assert done.stdout or done.stderr


# --- killed runs


def test_what_a_killed_run_left_is_removed_by_the_next(stock: Path, tmp_path: Path) -> None:
    arguments = ("--model", str(stock / "model"), "-f", "csv", "--out", "rows.csv", "--html", "page.html")
    with subprocess.Popen(
        [sys.executable, "-m", "dinnet", "classify", "pcap", "-", *arguments],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env=PLACE,
    ) as process:
        assert process.stdin
        process.stdin.write(capture(50)[:5000])
        process.stdin.flush()
        deadline = time.monotonic() + 120
        while len(left := sorted(path.name for path in tmp_path.iterdir())) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            select.select([], [], [], 0.02)
        # While it runs, another run for one of its files takes nothing away from it.
        again = run("classify", "pcap", str(stock / "a.pcap"), *arguments[:6], cwd=tmp_path, env=PLACE)
        assert again.returncode == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == [*left, "rows.csv"]
        process.kill()
    assert [name[-5:] for name in left] == [".part", ".part"]
    done = run("classify", "pcap", str(stock / "a.pcap"), *arguments, cwd=tmp_path, env=PLACE)
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "rows.csv"]
