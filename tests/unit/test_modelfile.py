from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dinnet.classifier import CLASSES, VERDICT_DTYPE, Classifier
from dinnet.classifier import modelfile as modelfile_module
from dinnet.classifier.forest import LEAF, ForestArrays
from dinnet.classifier.modelfile import (
    ModelFile,
    _document_digest,
    default_folder,
    read_model,
    read_sklearn,
    write_model,
)
from dinnet.errors import DinnetError, UsageError
from dinnet.flows.record import RECORD_DTYPE

GROUP_ROWS = np.eye(5, dtype=np.float32)


def leaf_or(value_left: int, value_right: int, threshold: float = 500) -> ForestArrays:
    """One tree: packet_size_mean (the first feature) <= threshold ? group value_left : group value_right."""
    return ForestArrays(
        np.array([0, 3], np.uint32),
        np.array([0, LEAF, LEAF], np.uint16),
        np.array([threshold, 0, 0], np.float32),
        np.array([1, 0, 1], np.uint32),
        GROUP_ROWS[[value_left, value_right]],
    )


def yes(probability: float) -> ForestArrays:
    return ForestArrays(
        np.array([0, 1], np.uint32),
        np.array([LEAF], np.uint16),
        np.zeros(1, np.float32),
        np.zeros(1, np.uint32),
        np.array([[1 - probability, probability]], np.float32),
    )


def a_model() -> ModelFile:
    return ModelFile(
        features=("packet_size_mean", "direction_ratio"),
        threshold=0.7,
        forests={"class": leaf_or(1, 0), "streaming": yes(0.75)},
        info={"seed": 1},
        importance={"packet_size_mean": 1.0, "direction_ratio": 0.0},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", a_model(), {"card.md": b"# A card\n"})
    return tmp_path / "model"


def rewrite(folder: Path, **changes: object) -> None:
    """Change model.json as someone who also mends its hash would."""
    document = json.loads((folder / "model.json").read_text())
    document.update(changes)
    document["sha256"] = _document_digest(document)
    (folder / "model.json").write_text(json.dumps(document))


def replace_arrays(folder: Path, data: bytes) -> None:
    """Put other bytes in the place of forest.npz, with a matching hash."""
    (folder / "forest.npz").write_bytes(data)
    files = json.loads((folder / "model.json").read_text())["files"]
    rewrite(folder, files={**files, "forest.npz": hashlib.sha256(data).hexdigest()})


def packets(sizes: list[int]) -> np.ndarray:
    records = np.zeros(len(sizes), RECORD_DTYPE)
    records["fwd_packets"] = 1
    records["fwd_bytes"] = sizes
    return records


def test_round_trip(folder: Path) -> None:
    model = read_model(folder, everything=True)
    assert model.features == ("packet_size_mean", "direction_ratio")
    assert model.threshold == 0.7
    assert model.info == {"seed": 1}
    for output, arrays in a_model().forests.items():
        for name in ForestArrays.NAMES:
            assert np.array_equal(getattr(model.forests[output], name), getattr(arrays, name))


def test_verdicts(folder: Path) -> None:
    verdicts = Classifier.load(folder).classify(packets([100, 500, 501]))
    assert verdicts.dtype == VERDICT_DTYPE
    assert [CLASSES[i] for i in verdicts["class_id"]] == ["decode", "decode", "prefill"]
    assert verdicts["confidence"].tolist() == [1, 1, 1]
    assert verdicts["streaming"].tolist() == [0.75] * 3
    assert np.isnan(verdicts["first_request"]).all()
    assert np.isnan(verdicts["large_model"]).all()


def test_other_and_doubtful_flows_are_unclassified(tmp_path: Path) -> None:
    other = leaf_or(4, 2)
    doubtful = np.array([[0.05, 0.05, 0.05, 0.05, 0.8], [0.1, 0.1, 0.65, 0.1, 0.05]], np.float32)
    forest = ForestArrays(other.tree_start, other.feature, other.threshold, other.left, doubtful)
    model = ModelFile(a_model().features, 0.7, {"class": forest, "streaming": yes(0.5)})
    write_model(tmp_path / "m", model, {})
    verdicts = Classifier.load(tmp_path / "m").classify(packets([100, 900]))
    assert verdicts["class_id"].tolist() == [4, 4]
    np.testing.assert_allclose(verdicts["confidence"], [0.8, 0.65])
    assert np.isnan(verdicts["streaming"]).all()


def test_other_outputs_only_where_they_apply(tmp_path: Path) -> None:
    model = ModelFile(a_model().features, 0.7, {"class": leaf_or(3, 0), "large_model": yes(0.25)})
    write_model(tmp_path / "m", model, {})
    verdicts = Classifier.load(tmp_path / "m").classify(packets([100, 900] * 40_000))
    assert verdicts["class_id"].tolist() == [3, 0] * 40_000
    assert np.isnan(verdicts["large_model"][::2]).all()
    assert (verdicts["large_model"][1::2] == 0.25).all()


def test_no_records(folder: Path) -> None:
    assert Classifier.load(folder).classify(packets([])).shape == (0,)


def test_replaces_an_older_model_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    write_model(folder, ModelFile(("direction_ratio",), 0.5, {"class": leaf_or(0, 1)}), {})
    assert read_model(folder).threshold == 0.5
    assert sorted(path.name for path in folder.iterdir()) == ["forest.npz", "model.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="other things"):
        write_model(tmp_path / "notes", a_model(), {})
    with pytest.raises(UsageError, match="is a file"):
        write_model(tmp_path / "notes" / "mine.txt", a_model(), {})
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"


def test_full_disk_keeps_the_older_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(modelfile_module.os, "fsync", full)
    with pytest.raises(DinnetError, match="No space left"):
        write_model(folder, ModelFile(("direction_ratio",), 0.5, {"class": leaf_or(0, 1)}), {})
    monkeypatch.undo()
    assert read_model(folder, everything=True).threshold == 0.7
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["model.json", "forest.npz"])
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DinnetError, match=rf"{name}: missing"):
        Classifier.load(folder)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match="no model folder"):
        Classifier.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.json", "forest.npz"])
def test_every_truncation_and_flipped_bit_is_refused(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    rng = np.random.default_rng(2)
    for length in [0, 1, *rng.integers(2, len(whole) - 2, 20)]:
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(DinnetError):
            Classifier.load(folder)
    for position in rng.integers(0, len(whole) - 1, 40):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        if name == "model.json" and bytes(damaged).split() == whole.split():
            continue  # one kind of white space for another
        (folder / name).write_bytes(bytes(damaged))
        with pytest.raises(DinnetError):
            Classifier.load(folder)


def test_tampered_card_is_found_when_everything_is_checked(folder: Path) -> None:
    (folder / "card.md").write_text("# Perfect\n")
    read_model(folder)
    with pytest.raises(DinnetError, match=r"card\.md.*SHA-256"):
        read_model(folder, everything=True)


def test_a_model_may_lack_its_scikit_learn_form_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_model(folder, a_model(), {"forest.skops": b"trees", "card.md": b"# A card\n"})
    (folder / "forest.skops").write_bytes(b"other trees")
    with pytest.raises(DinnetError, match=r"forest\.skops.*SHA-256"):
        read_model(folder, everything=True)
    (folder / "forest.skops").unlink()
    assert read_model(folder, everything=True).threshold == 0.7
    (folder / "card.md").unlink()
    with pytest.raises(DinnetError, match=r"card\.md: missing"):
        read_model(folder, everything=True)


def test_scikit_learn_form_that_is_absent_or_changed(folder: Path) -> None:
    with pytest.raises(DinnetError, match=r"forest\.skops: the scikit-learn form of this model is not installed"):
        read_sklearn(folder)  # model.json knows of none
    write_model(folder, a_model(), {"forest.skops": b"trees"})
    pytest.importorskip("skops")
    (folder / "forest.skops").write_bytes(b"other trees")
    with pytest.raises(DinnetError, match=r"forest\.skops.*SHA-256"):
        read_sklearn(folder)
    (folder / "forest.skops").unlink()
    with pytest.raises(DinnetError, match="not installed"):
        read_sklearn(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "model format 2"),
        ({"format": "1"}, "model format '1'"),
        ({"features": ["packet_size_mean", "shoe_size"]}, "another feature list"),
        ({"features": ["packet_size_mean", "packet_size_mean"]}, "another feature list"),
        ({"features": []}, "another feature list"),
        ({"features": [["packet_size_mean"]]}, "another feature list"),
        ({"features": ["direction_ratio", "packet_size_mean"]}, "other formulas"),  # the hash is of the other order
        ({"features_sha256": "0" * 64}, "other formulas"),
        ({"outputs": {"class": ["a", "b"]}}, "other outputs or classes"),
        ({"outputs": {}}, "other outputs or classes"),
        ({"thresholds": {"class": 7}}, "threshold 7"),
        ({"thresholds": {"class": None}}, "threshold None"),
        ({"thresholds": []}, "'thresholds'"),
        ({"sharpness": 0}, "sharpness 0"),
        ({"sharpness": None}, "sharpness None"),
        ({"files": {}}, "file list"),
        ({"files": {"forest.npz": "0", "../../etc/passwd": "0"}}, "file list"),
        ({"importance": {"packet_size_mean": "much"}}, "importance"),
        ({"info": None}, "'info'"),
    ],
)
def test_wrong_descriptions(folder: Path, changes: dict[str, object], reason: str) -> None:
    rewrite(folder, **changes)
    with pytest.raises(DinnetError, match=reason):
        read_model(folder)


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "{}", '{"format": 1}', "[" * 100_000, '{"format": NaN}'])
def test_descriptions_that_are_none(folder: Path, text: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(DinnetError, match=r"model\.json"):
        read_model(folder)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("exploded",)


def test_pickle_inside_is_refused_and_not_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    arrays = {f"class.{name}": getattr(leaf_or(0, 1), name) for name in ForestArrays.NAMES}
    arrays["class.threshold"] = np.array([_Bomb()], dtype=object)
    np.savez(buffer, **arrays)
    replace_arrays(folder, buffer.getvalue())
    rewrite(folder, outputs={"class": json.loads((folder / "model.json").read_text())["outputs"]["class"]})
    with pytest.raises(DinnetError, match="plain arrays"):
        read_model(folder)
    replace_arrays(folder, pickle.dumps(_Bomb()))
    with pytest.raises(DinnetError, match="plain arrays"):
        read_model(folder)
    assert not (tmp_path / "exploded").exists()


def test_hostile_arrays_with_a_matching_hash(folder: Path) -> None:
    forest = leaf_or(0, 1)
    arrays = {f"class.{name}": getattr(forest, name) for name in ForestArrays.NAMES}
    arrays |= {f"streaming.{name}": getattr(yes(0.5), name) for name in ForestArrays.NAMES}
    arrays["class.left"] = np.array([2**31, 0, 1], np.uint32)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    replace_arrays(folder, buffer.getvalue())
    with pytest.raises(DinnetError, match="outside its tree"):
        Classifier.load(folder)


def test_array_that_claims_more_than_it_holds(folder: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(folder / "forest.npz") as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "class.left.npy":
                data = data.replace(b"'shape': (3,), }          ", b"'shape': (3000000000000,), }")[: len(data)]
                assert b"3000000000000" in data
            new.writestr(info.filename, data)
    replace_arrays(folder, buffer.getvalue())
    with pytest.raises(DinnetError, match="plain arrays"):
        read_model(folder)


def test_file_that_unpacks_to_too_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelfile_module, "_MAX_UNPACKED_BYTES", 4000)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, zeros=np.zeros(10_000))
    assert len(buffer.getvalue()) < 4000
    replace_arrays(folder, buffer.getvalue())
    with pytest.raises(DinnetError, match="unpacks to more"):
        read_model(folder)


def test_missing_array(folder: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{"class.left": np.zeros(3, np.uint32)})
    replace_arrays(folder, buffer.getvalue())
    with pytest.raises(DinnetError, match="array is missing"):
        read_model(folder)


def test_default_folder_of_a_checkout() -> None:
    folder = default_folder()
    assert folder.name == "default"
    assert folder.parent.name in ("models", "_models")


def test_serving_needs_neither_sklearn_nor_skops(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from dinnet.classifier import Classifier\n"
        "from dinnet.flows.record import RECORD_DTYPE\n"
        f"Classifier.load(Path({str(folder)!r})).classify(np.zeros(3, RECORD_DTYPE))\n"
        "heavy = {'sklearn', 'skops', 'matplotlib', 'rich', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=120)
