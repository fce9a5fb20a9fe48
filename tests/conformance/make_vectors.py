"""Write the inputs of the golden vectors: `python tests/conformance/make_vectors.py`. Needs scapy.

Outcomes come from `python -m dinnet.dataplane.conformance record --bmv2 PATH`; those of vectors that stay as they were
are kept until then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from subjects.book import Book  # noqa: E402
from subjects.catalogue import BOOKS  # noqa: E402

from dinnet.dataplane.conformance.vectors import Subject, dump, load  # noqa: E402

VECTORS = HERE / "vectors"


def inputs(make: Callable[[], Book], name: str) -> Subject:
    """A subject with the outcomes that are known already."""
    made = make().subject()
    path = VECTORS / f"{name}.json"
    if not path.exists():
        return made
    old = load(path)
    known = {(v.name, v.tables, v.steps): v.expected for v in map(_plain, old.vectors)}
    vectors = tuple(replace(v, expected=known.get((v.name, _plain(v).tables, v.steps))) for v in made.vectors)
    return replace(made, vectors=vectors, recorded=old.recorded)


def _plain(vector):  # type: ignore[no-untyped-def]
    """With tables as text, which can be compared whatever built them."""
    import json

    return replace(vector, tables=tuple(json.dumps(table) for table in vector.tables))


def main() -> None:
    for name, make in BOOKS.items():
        subject = inputs(make, name)
        (VECTORS / f"{name}.json").write_text(dump(subject))
        sys.stderr.write(f"{name}: {len(subject.vectors)} vectors\n")


if __name__ == "__main__":
    main()
