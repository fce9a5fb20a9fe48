"""Labelled flow records on disk: one `.npz` file a recorded scenario, arrays only, no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dinnet.errors import DinnetError, reason
from dinnet.flows.record import RECORD_DTYPE, Records
from dinnet.parts import new_file

#: Training groups in the order of their numbers. The last one is traffic that is not inference.
GROUPS: Final = ("prefill", "decode", "control", "data", "other")

#: Arrays of a file beside `records` and `manifest`: name -> type. -1 in an i1 array means "does not apply".
_COLUMNS: Final = {
    "group": np.uint8,
    "flow": np.uint32,
    "streaming": np.int8,
    "first_request": np.int8,
    "large_model": np.int8,
    "transport": np.uint16,
    "model": np.uint16,
}
#: A corpus file larger than this once unpacked is refused: a small file can unpack to any size.
_MAX_BYTES: Final = 8 << 30


@dataclass
class LabelledRecords:
    """Flow records with what their senders said about them; all arrays have shape (n,)."""

    records: Records
    group: NDArray[np.uint8]  # index into GROUPS
    flow: NDArray[np.uint32]  # which flow a record belongs to
    streaming: NDArray[np.int8]  # 1, 0, or -1 where it does not apply; so the next two
    first_request: NDArray[np.int8]
    large_model: NDArray[np.int8]  # 1 where the model has at least 10e9 parameters
    transport: NDArray[np.uint16]  # index into manifest["transports"]
    model: NDArray[np.uint16]  # index into manifest["models"]; the name "" stands for no model
    manifest: dict[str, Any]  # of one scenario, or {"scenarios": [manifests], "transports", "models"} of several
    scenario: NDArray[np.uint16] | None = field(default=None)  # index into `scenarios`; None: all of the only one

    def __len__(self) -> int:
        return len(self.records)

    @property
    def scenarios(self) -> list[dict[str, Any]]:
        """The manifest of each scenario."""
        return list(self.manifest.get("scenarios", [self.manifest]))

    @property
    def transports(self) -> list[str]:
        return list(self.manifest["transports"])

    @property
    def models(self) -> list[str]:
        return list(self.manifest["models"])

    @property
    def links(self) -> list[str]:
        """Name of each scenario's link."""
        return [link_name(manifest.get("link", {})) for manifest in self.scenarios]

    @property
    def scenario_index(self) -> NDArray[np.uint16]:
        """For each record, the index of its scenario."""
        return np.zeros(len(self), np.uint16) if self.scenario is None else self.scenario

    def select(self, rows: NDArray[Any]) -> LabelledRecords:
        """The records that `rows` (a mask or indexes) picks."""
        return LabelledRecords(
            records=self.records[rows],
            manifest=self.manifest,
            scenario=self.scenario_index[rows],
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
        )

    def digest(self) -> str:
        """SHA-256 over all arrays and the manifest: names the corpus in a model's manifest."""
        sha = hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode())
        for name in ("records", *_COLUMNS):
            sha.update(np.ascontiguousarray(getattr(self, name)).view(np.uint8).tobytes())
        return sha.hexdigest()

    def check(self, where: str = "labelled records") -> None:
        """Raise DinnetError where lengths, types, indexes or label values do not fit together."""
        n = len(self.records)
        if self.records.dtype != RECORD_DTYPE or self.records.ndim != 1:
            raise DinnetError(f"{where}: records of another layout than this version's; record the corpus again")
        for name, kind in _COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != kind or column.shape != (n,):
                raise DinnetError(
                    f"{where}: array {name!r} is {column.dtype}{column.shape}, not {np.dtype(kind)}({n},)"
                )
        for name in ("transports", "models"):
            names = self.manifest.get(name)
            if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
                raise DinnetError(f"{where}: the manifest's {name!r} is not a list of names")
        scenarios = self.manifest.get("scenarios", [self.manifest])
        if not isinstance(scenarios, list) or not all(isinstance(item, dict) for item in scenarios):
            raise DinnetError(f"{where}: the manifest's 'scenarios' is not a list of manifests")
        if self.scenario is not None and (self.scenario.dtype != np.uint16 or self.scenario.shape != (n,)):
            raise DinnetError(f"{where}: array 'scenario' is {self.scenario.dtype}{self.scenario.shape}")
        if n == 0:
            return
        limits = {
            "group": len(GROUPS),
            "transport": len(self.manifest["transports"]),
            "model": len(self.manifest["models"]),
        }
        for name, limit in limits.items():
            if (highest := int(getattr(self, name).max())) >= limit:
                raise DinnetError(f"{where}: array {name!r} holds {highest}, and there are only {limit} names")
        if self.scenario is not None and int(self.scenario.max()) >= len(scenarios):
            raise DinnetError(f"{where}: array 'scenario' points past the manifest's scenarios")
        for name in ("streaming", "first_request", "large_model"):
            column = getattr(self, name)
            if column.min() < -1 or column.max() > 1:
                raise DinnetError(f"{where}: array {name!r} holds values other than -1, 0 and 1")

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        path = Path(path)
        self.check(str(path))
        arrays = {name: getattr(self, name) for name in ("records", *_COLUMNS)}
        if self.scenario is not None:
            arrays["scenario"] = self.scenario
        target = Path(os.path.realpath(path))  # a symbolic link is followed
        try:
            with suppress(FileNotFoundError):
                target.stat()  # a link that leads round in circles is no place for a file
            descriptor, part = new_file(target)
            try:
                with os.fdopen(descriptor, "wb", closefd=False) as out:
                    np.savez_compressed(out, manifest=np.array(json.dumps(self.manifest, sort_keys=True)), **arrays)
                os.fchmod(descriptor, 0o644)
                part.replace(target)
            except BaseException:
                part.unlink()
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DinnetError(f"{path}: cannot write the corpus file: {reason(error)}") from error

    @classmethod
    def load(cls, path: Path) -> LabelledRecords:
        """Read one file; anything but a whole, well-formed corpus file is refused with DinnetError."""
        path = Path(path)
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
                    raise DinnetError(f"{path}: unpacks to more than {_MAX_BYTES >> 30} GiB; not a corpus file")
            with np.load(path, allow_pickle=False) as file:
                manifest = json.loads(str(file["manifest"][()]))
                if not isinstance(manifest, dict):
                    raise DinnetError(f"{path}: the manifest is not a JSON object")
                labelled = cls(
                    records=file["records"],
                    manifest=manifest,
                    scenario=file["scenario"] if "scenario" in file.files else None,
                    **{name: file[name] for name in _COLUMNS},
                )
        except FileNotFoundError:
            raise DinnetError(f"{path}: no such corpus file") from None
        except KeyError as error:
            raise DinnetError(f"{path}: not a corpus file: {error.args[0]}") from None
        except OSError as error:
            raise DinnetError(f"{path}: cannot read the corpus file: {reason(error)}") from error
        except (ValueError, zipfile.BadZipFile, EOFError, MemoryError, NotImplementedError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DinnetError(f"{path}: not a readable corpus file ({why})") from error
        except zlib.error as error:
            raise DinnetError(f"{path}: not a readable corpus file ({error})") from error
        labelled.check(str(path))
        return labelled


def concat(parts: Sequence[LabelledRecords]) -> LabelledRecords:
    """One corpus of many: names are merged, flows numbered so that no two parts share one."""
    if not parts:
        raise DinnetError("no labelled records given")
    transports = sorted({name for part in parts for name in part.transports})
    models = sorted({name for part in parts for name in part.models})
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in ("scenario", *_COLUMNS)}
    scenarios: list[dict[str, Any]] = []
    first_flow = 0
    for part in parts:
        to_transport = np.array([transports.index(name) for name in part.transports] or [0], np.uint16)
        to_model = np.array([models.index(name) for name in part.models] or [0], np.uint16)
        _, flow = np.unique(part.flow, return_inverse=True)
        for name in ("group", "streaming", "first_request", "large_model"):
            columns[name].append(getattr(part, name))
        columns["transport"].append(to_transport[part.transport])
        columns["model"].append(to_model[part.model])
        columns["flow"].append((flow + first_flow).astype(np.uint32))
        columns["scenario"].append((part.scenario_index + len(scenarios)).astype(np.uint16))
        first_flow += int(flow.max()) + 1 if len(flow) else 0
        scenarios += part.scenarios
    return LabelledRecords(
        records=np.concatenate([part.records for part in parts]),
        manifest={"scenarios": scenarios, "transports": transports, "models": models},
        **{name: np.concatenate(arrays) for name, arrays in columns.items()},
    )


def load_corpus(paths: Iterable[Path]) -> LabelledRecords:
    """All corpus files in `paths`, where a folder stands for the `.npz` files below it."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(path.rglob("*.npz"))
            if not found:
                raise DinnetError(f"{path}: no corpus files (*.npz) in this folder")
            files += found
        else:
            files.append(path)
    return concat([LabelledRecords.load(file) for file in files])


def link_name(link: object) -> str:
    """One word for a link: its `name`, else its settings in alphabetical order."""
    if isinstance(link, Mapping):
        if "name" in link:
            return str(link["name"])
        return ",".join(f"{key}={link[key]}" for key in sorted(link))
    return str(link)
