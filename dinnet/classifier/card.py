"""The model card: what a model was trained on and how well it does, in words, tables and pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinnet.classifier.corpus import GROUPS
from dinnet.classifier.model import CLASSES
from dinnet.classifier.modelfile import write_model

if TYPE_CHECKING:
    from dinnet.classifier.train import Trained

_TOP_FEATURES = 25


def write_trained(folder: Path, trained: Trained) -> None:
    """Write the model with its scikit-learn forests, scores, card and pictures."""
    import skops.io

    dump: bytes = skops.io.dumps(trained.sklearn_forests, compression=8)
    files = {
        "forest.skops": dump,
        "scores.json": json.dumps(trained.scores, indent=1, sort_keys=True).encode() + b"\n",
        **pictures(trained),
    }
    files["card.md"] = card(trained, [name for name in files if name.endswith(".png")]).encode()
    write_model(folder, trained.model, files)


def card(trained: Trained, picture_names: list[str]) -> str:
    """The card as Markdown."""
    info = trained.model.info
    options = trained.options
    training = info["training"]
    lines = [
        "# Traffic classifier",
        "",
        f"A random forest of {options.forest.trees} trees, depth at most {options.forest.depth}, over "
        f"{len(trained.model.features)} features of bidirectional flow records. It answers with one of "
        f"{', '.join(CLASSES[:4])}, or `unclassified` where the highest probability is below "
        f"{options.threshold:g} or belongs to traffic that is not inference. No feature uses an address, a port, "
        "a VLAN, a flow label or the time of day.",
        "",
        "## Trained on",
        f"{training['records']:,} records of "
        + ", ".join(f"{count:,} {name}" for name, count in training["flows"].items())
        + f" flows; corpus SHA-256 `{info['corpus']['sha256'][:16]}`; seed {options.seed}.",
        "",
        f"Transports: {', '.join(training['transports'])}.",
        "",
        f"Models: {', '.join(training['models']) or 'none'}. Links: {', '.join(training['links'])}.",
        "",
        "Never trained on: "
        + "; ".join(f"{kind} {', '.join(names)}" for kind, names in options.held_out.model_dump().items() if names)
        + ".",
        "",
    ]
    for name, scores in trained.scores["test"].items():
        lines += _part(f"Scores: {name}", scores)
    if trained.scores["cross_validation"] is not None:
        lines += _part(
            f"Scores: cross-validation on the training scenarios, {options.folds} folds of transports",
            trained.scores["cross_validation"],
        )
    lines += ["## Pictures", *(f"![{name.removesuffix('.png').replace('-', ' ')}]({name})" for name in picture_names)]
    lines += [
        "",
        "## Files",
        "`model.json` and `forest.npz` are what serving reads. `forest.skops` holds the scikit-learn forests: "
        "`skops.io.load` asks to trust `sklearn.tree._tree.Tree`, whose node numbers scikit-learn follows unchecked: "
        "let `dinnet evaluate` compare the hashes first. `scores.json` holds all figures of this card and more.",
        "",
        "## Limits",
        "Recorded between network namespaces on one machine: the kernel's own TCP over limited, delayed and lossy "
        "links, not a data centre's switches. Traffic that carries several kinds over one connection gets the "
        "class of the mix. Confidence is a forest's vote, see the calibration error.",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in info["versions"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


def _part(title: str, scores: Mapping[str, Any]) -> list[str]:
    flows = scores["flows"]
    lines = [
        f"## {title}",
        f"{scores['n_flows']:,} flows, {scores['n_records']:,} records. **Macro-F1 "
        f"{_number(flows['macro_f1'])}** by each flow's last record, "
        f"{_number(scores['checkpoint_16']['macro_f1'])} at 16 packets, "
        f"{_number(scores['records']['macro_f1'])} over all records. Other traffic called prefill or decode: "
        f"{_number(flows['other_called_inference'])} of {flows['other_support']:,} flows. "
        f"Calibration error {_number(scores['calibration']['error'])}.",
        "",
        "| class | precision | recall | F1 | flows |",
        "|---|---|---|---|---|",
    ]
    for name, row in flows["classes"].items():
        values = " | ".join(_number(row[key]) for key in ("precision", "recall", "f1"))
        lines.append(f"| {name} | {values} | {row['support']:,} |")
    lines += [
        "",
        "| checkpoint | records | accuracy | macro-F1 | inference left unclassified |",
        "|---|---|---|---|---|",
    ]
    for row in scores["by_checkpoint"]:
        values = " | ".join(_number(row[key]) for key in ("accuracy", "macro_f1", "unclassified"))
        lines.append(f"| {row['checkpoint']} | {row['records']:,} | {values} |")
    if scores["outputs"]:
        lines += ["", "| output | flows | yes | accuracy | balanced accuracy | F1 |", "|---|---|---|---|---|---|"]
    for name, row in scores["outputs"].items():
        values = " | ".join(_number(row[key]) for key in ("accuracy", "balanced_accuracy", "f1"))
        lines.append(f"| {name} | {row['records']:,} | {row['yes']:,} | {values} |")
    return [*lines, ""]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def pictures(trained: Trained) -> dict[str, bytes]:
    """PNG files by name: confusion matrix, calibration, accuracy by checkpoint, feature importance."""
    test = trained.scores["test"]
    judged = test.get("held-out") or next(iter(test.values()), None) or trained.scores["cross_validation"]
    drawn = {"feature-importance.png": _importance(trained.model.importance)}
    if judged is not None:
        drawn["confusion-matrix.png"] = _confusion(judged["flows"]["confusion"])
        drawn["calibration.png"] = _calibration(judged["calibration"])
        drawn["accuracy-by-checkpoint.png"] = _checkpoints(judged["by_checkpoint"])
    return dict(sorted(drawn.items()))


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    # No version and date inside: the same scores give the same bytes.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _confusion(confusion: Mapping[str, Mapping[str, int]]) -> bytes:
    figure, axes = _figure(5.6, 4.6)
    counts = [[confusion[group][name] for name in CLASSES] for group in GROUPS]
    shares = [[value / max(sum(row), 1) for value in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(5), CLASSES, rotation=30, ha="right")
    axes.set_yticks(range(5), GROUPS)
    axes.set_xlabel("verdict")
    axes.set_ylabel("truth")
    for i, row in enumerate(counts):
        for j, value in enumerate(row):
            colour = "white" if shares[i][j] > 0.5 else "black"
            axes.text(j, i, f"{shares[i][j]:.1%}\n{value:,}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_title("Held-out flows, share of each truth")
    return _png(figure)


def _calibration(calibration: Mapping[str, Any]) -> bytes:
    figure, axes = _figure(4.6, 4.2)
    bins = calibration["bins"]
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="perfect")
    axes.plot([b["confidence"] for b in bins], [b["accuracy"] for b in bins], marker="o", label="held-out records")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="highest probability", ylabel="share that is right")
    axes.set_title(f"Calibration (expected error {calibration['error']:.3f})")
    axes.legend(loc="upper left")
    return _png(figure)


def _checkpoints(rows: list[Mapping[str, Any]]) -> bytes:
    figure, axes = _figure(5.6, 3.6)
    names = [row["checkpoint"] for row in rows]
    for key, label in (
        ("accuracy", "accuracy"),
        ("macro_f1", "macro-F1"),
        ("unclassified", "inference left unclassified"),
    ):
        values = [float("nan") if row[key] is None else row[key] for row in rows]
        axes.plot(range(len(names)), values, marker="o", label=label)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title("Held-out records by checkpoint")
    return _png(figure)


def _importance(importance: Mapping[str, float]) -> bytes:
    figure, axes = _figure(6.4, 5.6)
    top = sorted(importance.items(), key=lambda item: item[1])[-_TOP_FEATURES:]
    axes.barh([name for name, _ in top], [value for _, value in top])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("mean decrease of impurity (sums to 1)")
    axes.set_title("Features that the class forest leans on")
    return _png(figure)
