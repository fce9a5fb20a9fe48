"""The wheel: built from the tree as it is, installed beside it, and used without the tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "sample.pcap.zst"
LEFT_OUT = "forest.skops"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel, in this environment")
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(out), str(ROOT))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds dinnet as installed from the wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", arguments[0], "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, *arguments[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def python(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter, away from the tree, with the installed dinnet before any other."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_wheel_holds_the_package_and_the_model_without_its_scikit_learn_form(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    model = {path.name for path in (ROOT / "models" / "default").iterdir()}
    assert LEFT_OUT in model
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "dinnet").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    program = {"dinnet/_p4/dinnet.json", "dinnet/_p4/dinnet.p4info.txtpb"}
    assert names == package | program | {f"dinnet/_models/default/{name}" for name in model - {LEFT_OUT}}
    assert wheel.stat().st_size < 10 << 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_installed_wheel_classifies_and_evaluates_with_its_own_model(installed: Path, tmp_path: Path) -> None:
    # The first run compiles everything; the second one finds that done.
    done = python(installed, tmp_path, "-m", "dinnet", "evaluate", "--other", str(SAMPLE), "--format", "json")
    assert done.returncode == 0, done.stderr
    flows = json.loads(done.stdout)["other_captures"][str(SAMPLE)]["flows"]
    done = python(installed, tmp_path, "-m", "dinnet", "classify", "pcap", str(SAMPLE), "--format", "ndjson")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == flows > 100


def test_installed_wheel_says_that_the_scikit_learn_form_is_not_there(installed: Path, tmp_path: Path) -> None:
    code = """
from dinnet.classifier.modelfile import default_folder, read_sklearn
from dinnet.errors import DinnetError
print(default_folder())
try:
    read_sklearn(default_folder())
except DinnetError as error:
    print(error)
"""
    done = python(installed, tmp_path, "-c", code)
    folder, message = done.stdout.splitlines()
    assert Path(folder) == installed / "dinnet" / "_models" / "default"
    assert "the scikit-learn form of this model is not installed" in message
