"""A model on disk: a folder that is read without trusting it, and written whole or not at all.

`model.json` names the format, the classes, the features, the thresholds, what the model was trained on,
and the SHA-256 of every other file. `forest.npz` holds plain arrays, all that serving needs.
`forest.skops` holds the same forests as scikit-learn objects, for inspection and reuse; it is large, and an
installed package has the shipped model without it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dinnet.classifier.corpus import GROUPS
from dinnet.classifier.forest import ForestArrays
from dinnet.errors import DinnetError, UsageError
from dinnet.flows.features import FEATURES

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

FORMAT: Final = 1
#: The forests a model may hold, with the classes of each.
OUTPUTS: Final = {
    "class": GROUPS,
    "streaming": ("no", "yes"),
    "first_request": ("continuation", "first"),
    "large_model": ("small", "large"),
}
#: The file that a model may lack: nothing that classifies or scores reads it.
SKLEARN_FILE: Final = "forest.skops"
_MAX_JSON_BYTES: Final = 16 << 20
_MAX_UNPACKED_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class ModelFile:
    """What a model folder says."""

    features: tuple[str, ...]  # names, in the order that the forests' feature numbers mean
    threshold: float  # a class needs at least this probability
    forests: dict[str, ForestArrays]  # by output name; "class" is always there
    sharpness: float = 1.0  # exponent that calibrates the class probabilities; see `dinnet.classifier.model.sharpen`
    info: dict[str, Any] = field(default_factory=dict)  # training manifest, scores, versions: for people
    importance: dict[str, float] = field(default_factory=dict)  # by feature name, sums to 1


def features_digest(names: tuple[str, ...]) -> str:
    """Names the meaning of the features: changes with any formula or unit."""
    known = {feature.name: feature for feature in FEATURES}
    text = "\n".join(f"{name}|{known[name].unit}|{known[name].formula}" for name in names)
    return hashlib.sha256(text.encode()).hexdigest()


def default_folder() -> Path:
    """Where the shipped model is: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_models" / "default"
    return installed if installed.is_dir() else package.parent / "models" / "default"


def write_model(folder: Path, model: ModelFile, files: Mapping[str, bytes]) -> None:
    """Write `model` and the `files` that go with it as `folder`, replacing an older model there.

    Everything is written beside the target first and then renamed, so that a full disk or a kill leaves the
    older model in place.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; name a folder for the model")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "model.json").exists():
        raise UsageError(f"{folder}: holds other things than a model; name a new folder")
    contents = {"forest.npz": _pack_arrays(model.forests), **files}
    document: dict[str, Any] = {
        "format": FORMAT,
        "outputs": {name: list(OUTPUTS[name]) for name in model.forests},
        "features": list(model.features),
        "features_sha256": features_digest(model.features),
        "thresholds": {"class": model.threshold},
        "sharpness": model.sharpness,
        "importance": model.importance,
        "info": model.info,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents.items())},
    }
    document["sha256"] = _document_digest(document)
    contents["model.json"] = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
    part: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        part.chmod(0o755)
        for name, data in contents.items():
            with (part / name).open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
        _swap(part, folder)
    except OSError as error:
        raise DinnetError(f"{folder}: cannot write the model: {error.strerror or error}") from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def read_model(folder: Path, *, everything: bool = False) -> ModelFile:
    """Read a model folder. Refuses (DinnetError) what is missing, damaged, of another version or of other features.

    With `everything`, the files that serving doesn't use are checked against their hashes too; only the
    scikit-learn forests may be absent.
    """
    folder = Path(folder)
    document = _read_document(folder)
    data = _read_listed(folder, document, "forest.npz")
    forests = _unpack_arrays(data, folder / "forest.npz", document["outputs"])
    if everything:
        for name in sorted(document["files"].keys() - {"forest.npz"}):
            if name != SKLEARN_FILE or (folder / name).exists():
                _read_listed(folder, document, name)
    names = tuple(document["features"])
    for name, arrays in forests.items():
        arrays.check(len(names), len(OUTPUTS[name]), f"{folder / 'forest.npz'}: {name}")
    importance = {str(key): float(value) for key, value in document["importance"].items()}
    threshold, sharpness = float(document["thresholds"]["class"]), float(document["sharpness"])
    return ModelFile(names, threshold, forests, sharpness, document["info"], importance)


def read_sklearn(folder: Path) -> dict[str, RandomForestClassifier]:
    """The forests of a model folder as scikit-learn objects, by output name.

    scikit-learn follows the node numbers of a tree unchecked: they are as trustworthy as the folder's author.

    Raises:
        DinnetError: They are not there, as in an installed package, or not the ones that model.json describes;
            or scikit-learn or skops is not installed.
    """
    folder = Path(folder)
    document = _read_document(folder)
    if SKLEARN_FILE not in document["files"] or not (folder / SKLEARN_FILE).exists():
        raise DinnetError(
            f"{folder / SKLEARN_FILE}: the scikit-learn form of this model is not installed "
            "(classifying does not need it); use models/default of the repository, or train a model (dinnet train)"
        )
    try:
        import skops.io
    except ImportError as error:
        raise DinnetError(
            f"{folder / SKLEARN_FILE}: reading it takes {error.name} (pip install 'dinnet[train]')"
        ) from error
    data = _read_listed(folder, document, SKLEARN_FILE)
    forests: dict[str, RandomForestClassifier] = skops.io.loads(data, trusted=["sklearn.tree._tree.Tree"])
    return forests


def _swap(part: Path, folder: Path) -> None:
    """Put `part` in the place of `folder`."""
    if not folder.exists():
        part.rename(folder)
        return
    old = part.with_name(part.name + ".old")
    folder.rename(old)
    try:
        part.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _document_digest(document: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise DinnetError(f"{path}: missing; train a model (dinnet train) or name another (--model)") from None
    except OSError as error:
        raise DinnetError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise DinnetError(f"{path}: larger than {limit >> 20} MiB; not a model file")
    return data


def _read_listed(folder: Path, document: Mapping[str, Any], name: str) -> bytes:
    """A file that model.json lists, with its hash checked."""
    data = _read_bytes(folder / name, _MAX_UNPACKED_BYTES)
    if hashlib.sha256(data).hexdigest() != document["files"][name]:
        raise DinnetError(f"{folder / name}: not the file that model.json describes (SHA-256 differs); restore it")
    return data


def _read_document(folder: Path) -> dict[str, Any]:
    """model.json, with everything that serving uses checked."""
    if not folder.is_dir():
        raise DinnetError(f"{folder}: no model folder there; train one (dinnet train) or name another (--model)")
    path = folder / "model.json"
    try:
        document = json.loads(_read_bytes(path, _MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise DinnetError(f"{path}: not JSON ({str(error).splitlines()[0]}); restore it") from error
    if not isinstance(document, dict) or "format" not in document:
        raise DinnetError(f"{path}: not a model description")
    if document["format"] != FORMAT:
        raise DinnetError(
            f"{path}: model format {document['format']!r}, this version reads format {FORMAT}; train the model again"
        )
    if document.get("sha256") != _document_digest(document):
        raise DinnetError(f"{path}: changed since it was written (SHA-256 differs); restore it")
    shapes = {"outputs": dict, "features": list, "thresholds": dict, "importance": dict, "info": dict, "files": dict}
    for name, kind in shapes.items():
        if not isinstance(document.get(name), kind):
            raise DinnetError(f"{path}: {name!r} is missing or of another type; restore it")
    outputs = document["outputs"]
    if "class" not in outputs or any(
        name not in OUTPUTS or classes != list(OUTPUTS[name]) for name, classes in outputs.items()
    ):
        raise DinnetError(f"{path}: other outputs or classes than this version's; train the model again")
    known = {feature.name for feature in FEATURES}
    features = document["features"]
    unknown = [name for name in features if not isinstance(name, str) or name not in known]
    if unknown or not features or len(set(features)) != len(features):
        raise DinnetError(f"{path}: another feature list than this version's ({unknown[:3]}); train the model again")
    if document.get("features_sha256") != features_digest(tuple(features)):
        raise DinnetError(f"{path}: its features were computed by other formulas; train the model again")
    threshold = document["thresholds"].get("class")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise DinnetError(f"{path}: the class threshold {threshold!r} is not between 0 and 1")
    sharpness = document.get("sharpness")
    if isinstance(sharpness, bool) or not isinstance(sharpness, int | float) or not 0.1 <= sharpness <= 10:
        raise DinnetError(f"{path}: the sharpness {sharpness!r} is not between 0.1 and 10")
    if not all(isinstance(value, int | float) for value in document["importance"].values()):
        raise DinnetError(f"{path}: an importance is not a number; restore it")
    files = document["files"]
    if "forest.npz" not in files or any(Path(name).name != name or name in ("", ".", "..") for name in files):
        raise DinnetError(f"{path}: its file list is not usable; restore it")
    return document


def _pack_arrays(forests: Mapping[str, ForestArrays]) -> bytes:
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        f"{output}.{name}": getattr(forest, name) for output, forest in forests.items() for name in ForestArrays.NAMES
    }
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _unpack_arrays(data: bytes, path: Path, outputs: Mapping[str, Any]) -> dict[str, ForestArrays]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_UNPACKED_BYTES:
                raise DinnetError(f"{path}: unpacks to more than {_MAX_UNPACKED_BYTES >> 20} MiB; not a model file")
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {
                output: ForestArrays(**{name: file[f"{output}.{name}"] for name in ForestArrays.NAMES})
                for output in outputs
            }
    except KeyError as error:
        raise DinnetError(f"{path}: an array is missing ({error.args[0]})") from None
    except (OSError, ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DinnetError(f"{path}: not readable as plain arrays ({reason})") from error
