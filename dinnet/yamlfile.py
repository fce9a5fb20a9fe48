"""YAML files checked by pydantic models; a mistake is told in one line, with file, line and reason."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from dinnet.errors import DinnetError, reason

Checked = TypeVar("Checked", bound=BaseModel)


class Misplaced(ValueError):
    """What a model's validator says of a part deeper inside: `location` leads there from the model."""

    def __init__(self, why: str, *location: int | str) -> None:
        super().__init__(why)
        self.location = location


class _Loader(yaml.SafeLoader):
    """The safe loader, which would quietly take the last of two equal keys, made to refuse them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


def load_yaml(path: Path, model: type[Checked]) -> Checked:
    """Read a YAML file as `model`.

    Raises:
        DinnetError: The file cannot be read, is not YAML, or does not fit the model.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "not a text file"
        raise DinnetError(f"{path}: cannot read: {why}") from error
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        content = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DinnetError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise DinnetError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        loader.dispose()
    if not isinstance(content, dict):
        raise DinnetError(f"{path}:1: a mapping of keys to values is expected")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        location = first["loc"] + (cause.location if isinstance(cause, Misplaced) else ())
        where = ".".join(map(str, location))
        why = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            why = "unknown key"
        elif first["type"] == "missing":
            why = "this key is missing"
        raise DinnetError(f"{path}:{_line(node, location)}: {f'{where}: ' if where else ''}{why}") from error


def _line(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """Line of the deepest part of `location` that is in the file, counted from 1."""
    line = node.start_mark.line if node is not None else 0
    for step in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return line + 1
