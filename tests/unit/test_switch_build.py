"""The switch's committed object, its layouts, and what Python repeats of the C code."""

from __future__ import annotations

import re
from enum import IntEnum

import pytest

from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE
from dinnet.switch import build, contract, queues
from dinnet.switch.btf import Btf
from dinnet.switch.cells import Cells

CONTRACT = (build.FOLDER / "contract.h").read_text()


def test_committed_object_is_built_from_the_sources_as_they_are() -> None:
    assert build.SOURCES_HASH.read_text().strip() == build.sources_hash(), "sources changed: run make bpf"
    for compiled in (build.OBJECT, build.QUEUES_OBJECT):
        assert compiled.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("name", "prefix", "enum"),
    [
        ("forward_action", "FORWARD_", contract.Action),
        ("exceed_action", "", contract.Exceed),
        ("bucket", "ABOVE_", contract.Bucket),
        ("drop", "DROP_", contract.Drop),
        ("parsed", "PARSED_", contract.Parsed),
        ("event_kind", "EVENT_", contract.Event),
        ("int_event", "INT_", contract.IntEvent),
        ("queue_miss", "QUEUE_", queues.Miss),
    ],
)
def test_enumerations_are_those_of_the_c_code(name: str, prefix: str, enum: type[IntEnum]) -> None:
    (body,) = re.findall(rf"^enum {name} {{(.*?)}};", CONTRACT, re.DOTALL | re.MULTILINE)
    value, wanted = 0, {}
    for item in re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL).split(","):
        label, _, given = (part.strip() for part in item.partition("="))
        value = int(given) if given else value
        wanted[label.removeprefix(prefix)] = value
        value += 1
    ours = {member.name: int(member) for member in enum}
    assert ours == {label: wanted[label] for label in ours}
    assert set(wanted) - set(ours) <= {"KEPT", "NONE", "CELLS"}


def section(name: str) -> bytes:
    """A section of the object, by the ELF format (64 bits, little-endian)."""
    data = build.OBJECT.read_bytes()

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    table, count, names = number(0x28, 8), number(0x3C, 2), number(0x3E, 2)
    text = number(table + 64 * names + 0x18, 8)
    for head in range(table, table + 64 * count, 64):
        start = text + number(head, 4)
        if data[start : data.index(b"\0", start)].decode() == name:
            return data[number(head + 0x18, 8) :][: number(head + 0x20, 8)]
    raise AssertionError(f"no section {name}")


def test_flow_record_is_laid_out_as_the_capture_readers() -> None:
    btf = Btf(section(".BTF"))
    record = btf.dtype("flow_record")
    assert record.itemsize == RECORD_DTYPE.itemsize
    assert record.fields is not None
    assert RECORD_DTYPE.fields is not None
    for name in record.names or ():
        theirs = record.fields[name]
        if name == "sides":
            side = theirs[0].base
            assert side.fields is not None
            for number, prefix in enumerate(("fwd", "rev")):
                for inner, (kind, offset, *_) in side.fields.items():
                    assert RECORD_DTYPE.fields[f"{prefix}_{inner}"] == (kind, theirs[1] + number * 144 + offset)
        elif theirs[0].shape:
            for number in range(theirs[0].shape[0]):
                ours = RECORD_DTYPE.fields[f"{name}_{number + 1}"]
                assert ours == (theirs[0].base, theirs[1] + number * theirs[0].base.itemsize)
        else:
            assert RECORD_DTYPE.fields[name] == theirs[:2]


def test_type_information() -> None:
    btf = Btf(section(".BTF"))
    key, value = btf.map_layout("microflow") or (None, None)
    assert key == btf.dtype("microflow_key")
    assert value == btf.dtype("microflow")
    assert btf.map_layout("events") is None
    assert btf.dtype("route_v6_key").fields["dst"][1] == 4  # type: ignore[index]
    with pytest.raises(DinnetError, match="no structure 'nope'"):
        btf.dtype("nope")
    with pytest.raises(DinnetError, match="cannot be read"):
        Btf(b"\0" * 40)
    with pytest.raises(DinnetError, match="cannot be read"):
        Btf(section(".BTF")[:200])


def test_freed_cells_are_used_again_last() -> None:
    import numpy as np

    cells = Cells(5, np.array([1], np.uint32))
    assert cells.take(2).tolist() == [0, 2]
    cells.give_back(np.array([2, 1], np.uint32))
    assert cells.take(9).tolist() == [3, 4, 2, 1]
    assert cells.free == 0
    assert cells.take(1).tolist() == []
