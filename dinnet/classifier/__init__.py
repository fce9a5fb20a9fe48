"""The traffic classifier: flow records in, verdicts out; and how it is trained and scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dinnet.classifier.corpus import LabelledRecords
    from dinnet.classifier.model import CLASSES, VERDICT_DTYPE, Classifier, Verdicts

__all__ = ["CLASSES", "VERDICT_DTYPE", "Classifier", "LabelledRecords", "Verdicts"]


def __getattr__(name: str) -> Any:
    # Loading the compiled engine takes a while: only who uses it waits.
    if name == "LabelledRecords":
        from dinnet.classifier import corpus

        return corpus.LabelledRecords
    if name in __all__:
        from dinnet.classifier import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
