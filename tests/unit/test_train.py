from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from labelled_flows import MODELS, TRANSPORTS, make
from typer.testing import CliRunner

from dinnet.classifier import Classifier
from dinnet.classifier.card import write_trained
from dinnet.classifier.corpus import GROUPS, LabelledRecords, concat, link_name, load_corpus
from dinnet.classifier.evaluate import best_sharpness, binary_scores, calibration, count, last_of_flow
from dinnet.classifier.model import decide, sharpen
from dinnet.classifier.modelfile import read_model, read_sklearn
from dinnet.classifier.split import HeldOut, folds, split, weights
from dinnet.classifier.train import Trained, TrainOptions, train
from dinnet.cli import train as train_command
from dinnet.errors import DinnetError, UsageError
from dinnet.flows.features import FEATURE_NAMES, features

HELD_OUT = {"transports": ["*/way-3"], "models": ["large-405b"], "links": ["10g"], "scenarios": ["real"]}
RECIPE: dict[str, Any] = {
    "held_out": HELD_OUT,
    "forest": {"trees": 12, "depth": 10},
    "output_forest": {"trees": 6},
    "folds": 2,
    "fold_by": "transport",  # the corpus has one training scenario
    "fold_forest": {"trees": 6},
}


@pytest.fixture(scope="module")
def corpus() -> LabelledRecords:
    return concat([make(1), make(2, link="10g"), make(3, link="100m", scenario="real")])


@pytest.fixture(scope="module")
def trained(corpus: LabelledRecords) -> Trained:
    return train(corpus, TrainOptions.model_validate(RECIPE), jobs=1)


# --- corpus files


def test_corpus_round_trip(tmp_path: Path) -> None:
    labelled = make(4, flows=20)
    labelled.save(tmp_path / "a.npz")
    loaded = LabelledRecords.load(tmp_path / "a.npz")
    assert loaded.records.tobytes() == labelled.records.tobytes()
    for name in ("group", "flow", "streaming", "first_request", "large_model", "transport", "model"):
        assert np.array_equal(getattr(loaded, name), getattr(labelled, name))
    assert loaded.manifest == labelled.manifest
    assert loaded.digest() == labelled.digest()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_concat_keeps_every_record_s_names_and_keeps_flows_apart() -> None:
    first, second = make(1, flows=20), make(2, flows=20, link="10g")
    # The second part has the same names in another order.
    second.manifest["transports"].reverse()
    second.transport = (len(TRANSPORTS) - 1 - second.transport).astype(np.uint16)
    both = concat([first, second])
    names = [both.transports[i] for i in both.transport]
    assert names == [TRANSPORTS[i] for i in first.transport] + [
        second.manifest["transports"][i] for i in second.transport
    ]
    assert [both.links[i] for i in both.scenario_index] == ["1g-5ms"] * len(first) + ["10g"] * len(second)
    assert len(np.unique(both.flow)) == 40
    assert not set(both.flow[: len(first)]) & set(both.flow[len(first) :])
    again = concat([both, first])
    assert len(again.scenarios) == 3
    assert len(np.unique(again.flow)) == 60


def test_a_concatenated_corpus_can_be_saved(tmp_path: Path) -> None:
    both = concat([make(1, flows=10), make(2, flows=10, link="10g")])
    both.save(tmp_path / "both.npz")
    loaded = LabelledRecords.load(tmp_path / "both.npz")
    assert [loaded.links[i] for i in loaded.scenario_index] == [both.links[i] for i in both.scenario_index]


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("group", np.full(5, 5, np.uint8), "'group'"),
        ("group", np.zeros(5, np.int64), "int64"),
        ("flow", np.zeros(4, np.uint32), "'flow'"),
        ("transport", np.full(5, 20, np.uint16), "'transport' holds 20"),
        ("model", np.full(5, 4, np.uint16), "'model' holds 4"),
        ("streaming", np.full(5, 2, np.int8), "'streaming'"),
        ("records", np.zeros(5), "another layout"),
        ("manifest", np.array("[]"), "not a JSON object"),
        ("manifest", np.array("{}"), "'transports'"),
        ("manifest", np.array("{"), "not a readable"),
        ("group", np.array([object()] * 5), "not a readable"),
    ],
)
def test_bad_corpus_files(tmp_path: Path, name: str, array: np.ndarray, reason: str) -> None:
    labelled = make(4, flows=20).select(np.arange(5))
    labelled.scenario = None
    labelled.save(tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as good:
        arrays = dict(good)
    arrays[name] = array
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DinnetError, match=reason) as caught:
        LabelledRecords.load(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)


def test_corpus_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DinnetError, match="no such"):
        LabelledRecords.load(tmp_path / "nothing.npz")
    make(4, flows=20).save(tmp_path / "good.npz")
    whole = (tmp_path / "good.npz").read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:length])
        with pytest.raises(DinnetError, match=r"cut\.npz"):
            LabelledRecords.load(tmp_path / "cut.npz")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(DinnetError, match=r"empty\.npz"):
        LabelledRecords.load(tmp_path / "empty.npz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DinnetError, match="no corpus files"):
        load_corpus([tmp_path / "folder"])


def test_link_names() -> None:
    assert link_name({"name": "wan", "rate": 1}) == "wan"
    assert link_name({"rate": 5, "delay": 2}) == "delay=2,rate=5"


# --- splitting and weighing


def test_training_shares_no_held_out_attribute(corpus: LabelledRecords) -> None:
    held_out = HeldOut(**{key: tuple(names) for key, names in HELD_OUT.items()})
    training, parts = split(corpus, held_out)
    link = np.array(corpus.links)[corpus.scenario_index]
    transport = np.array(corpus.transports)[corpus.transport]
    model = np.array(corpus.models)[corpus.model]
    scenario = np.array([m["scenario"] for m in corpus.scenarios])[corpus.scenario_index]
    assert training.any()
    assert not np.char.endswith(transport[training], "/way-3").any()
    assert set(model[training]) == {"", "small-1b", "large-70b"}
    assert set(link[training]) == {"1g-5ms"}
    assert set(scenario[training]) == {"made-up"}
    # Together the test parts are everything that is not trained on; each part has its own attribute throughout.
    assert np.array_equal(parts["held-out"] | parts["held-out scenarios"], ~training)
    assert not (parts["held-out"] & parts["held-out scenarios"]).any()
    assert np.char.endswith(transport[parts["held-out transports"]], "/way-3").all()
    assert set(model[parts["held-out models"]]) == {"large-405b"}
    assert set(link[parts["held-out links"]]) == {"10g"}
    assert set(scenario[parts["held-out scenarios"]]) == {"real"}
    # A flow lies on one side.
    assert not set(corpus.flow[training]) & set(corpus.flow[~training])


def test_scenarios_recorded_for_judging_are_never_trained_on() -> None:
    judging = make(2, flows=40)
    judging.manifest |= {"split": "held_out", "unseen": ["model"], "scenario": "judging"}
    both = concat([make(1, flows=40), judging])
    training, parts = split(both, HeldOut(models=("large-405b",)))
    of_judging = both.scenario_index == 1
    held_model = np.array(both.models)[both.model] == "large-405b"
    assert np.array_equal(training, ~of_judging & ~held_model)
    # With the background traffic of the scenario that was recorded to judge models.
    assert np.array_equal(parts["held-out models"], of_judging | held_model)
    assert not parts["held-out links"].any()


def test_folds_keep_a_transport_together_and_every_group_in_each(corpus: LabelledRecords) -> None:
    fold = folds(corpus, 4, "transport")
    for transport in range(len(TRANSPORTS)):
        assert len(np.unique(fold[corpus.transport == transport])) == 1
    for number in range(4):
        assert set(corpus.group[fold == number]) == set(range(len(GROUPS)))


def test_weights_by_hand() -> None:
    # Group 0: flow 0 with three records; group 1: flow 1 with one record. Transports apart.
    labelled = make(1, flows=5)
    picked = np.concatenate([np.flatnonzero(labelled.flow == 0)[:3], np.flatnonzero(labelled.flow == 1)[:1]])
    labelled = labelled.select(picked)
    np.testing.assert_allclose(weights(labelled, 1, 0), [2 / 3, 2 / 3, 2 / 3, 2])  # groups weigh 2 each
    # Group 0 now also has a flow of one record by the same transport: flows weigh the same at flow_balance 1.
    labelled = labelled.select(np.array([0, 1, 2, 3, 3]))
    labelled.group = np.array([0, 0, 0, 1, 0], np.uint8)
    labelled.flow = np.array([0, 0, 0, 1, 2], np.uint32)
    labelled.transport = np.array([0, 0, 0, 4, 0], np.uint16)
    np.testing.assert_allclose(weights(labelled, 1, 0) / 1.25, [1 / 3, 1 / 3, 1 / 3, 2, 1])
    np.testing.assert_allclose(weights(labelled, 0, 0) / 0.625, [1, 1, 1, 4, 1])
    # By another transport, at transport_balance 1, each of the two weighs half of the group.
    labelled.transport = np.array([0, 0, 0, 4, 1], np.uint16)
    np.testing.assert_allclose(weights(labelled, 0, 1) / 1.25, [1 / 3, 1 / 3, 1 / 3, 2, 1])


# --- scores


def test_scores_by_hand() -> None:
    group = np.array([0, 0, 0, 1, 1, 2, 4, 4], np.uint8)
    verdict = np.array([0, 0, 4, 1, 0, 2, 4, 1], np.uint8)
    scores = count(group, verdict)
    np.testing.assert_allclose(scores.precision[:3], [2 / 3, 1 / 2, 1])
    np.testing.assert_allclose(scores.recall[:3], [2 / 3, 1 / 2, 1])
    np.testing.assert_allclose(scores.f1[:3], [2 / 3, 1 / 2, 1])
    assert np.isnan(scores.f1[3])  # no data flows here
    assert scores.macro_f1 == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert scores.false_inference == 0.5
    assert scores.unclassified == pytest.approx(1 / 6)
    plain = json.loads(json.dumps(scores.as_dict(), allow_nan=False))
    assert plain["confusion"]["prefill"] == {"prefill": 2, "decode": 0, "control": 0, "data": 0, "unclassified": 1}


def test_calibration_by_hand() -> None:
    # Two records at 0.95, one right: off by 0.45; two at 0.55, both right: off by 0.45.
    probabilities = np.full((4, 5), 0.0)
    probabilities[:2, 0] = 0.95
    probabilities[2:, 0] = 0.55
    result = calibration(np.array([0, 1, 0, 0], np.uint8), probabilities)
    assert result["error"] == pytest.approx(0.45)
    assert [row["records"] for row in result["bins"]] == [2, 2]


def test_binary_scores_by_hand() -> None:
    result = binary_scores(np.array([1, 1, 1, 0, -1], np.int8), np.array([0.9, 0.5, 0.1, 0.6, 0.9]))
    assert result == {"records": 4, "yes": 3, "accuracy": 0.5, "balanced_accuracy": pytest.approx(1 / 3), "f1": 2 / 3}


def test_last_of_flow() -> None:
    assert last_of_flow(np.array([3, 1, 3, 1, 2])).tolist() == [2, 3, 4]


def test_decide() -> None:
    rows = np.array([[0.7, 0.3, 0, 0, 0], [0.69, 0.31, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0.71, 0.29]])
    assert decide(rows, 0.7).tolist() == [0, 4, 4, 3]


def test_sharpen() -> None:
    # 0.6^2 / (0.6^2 + 0.4^2) = 0.36 / 0.52; exponent 1 changes nothing, certainty stays.
    rows = np.array([[0.6, 0.4, 0, 0, 0], [0, 1, 0, 0, 0]])
    assert sharpen(rows, 2.0) == pytest.approx(np.array([[0.36 / 0.52, 0.16 / 0.52, 0, 0, 0], [0, 1, 0, 0, 0]]))
    assert sharpen(rows, 1.0) is rows


def test_best_sharpness_makes_confidence_what_it_is_worth() -> None:
    # Of votes of 0.6 nine in ten are right: p^s / (p^s + q^s) = 0.9 at s = log 9 / log 1.5 = 5.42, beyond the limit;
    # seven in ten: s = log(7 / 3) / log 1.5 = 2.09.
    votes = np.tile([0.6, 0.4, 0, 0, 0], (100, 1))
    weight = np.ones(100)
    assert best_sharpness(np.repeat([0, 1], [90, 10]).astype(np.uint8), votes, weight) == 4.0
    assert best_sharpness(np.repeat([0, 1], [70, 30]).astype(np.uint8), votes, weight) == pytest.approx(2.1)


# --- training


def test_learns_what_is_easy(trained: Trained) -> None:
    held_out = trained.scores["test"]["held-out"]
    assert held_out["flows"]["macro_f1"] > 0.95
    assert held_out["flows"]["other_called_inference"] == 0
    assert set(trained.scores["test"]) == {"held-out", *(f"held-out {name}" for name in HELD_OUT)}
    assert set(trained.model.forests) == {"class", "streaming", "first_request", "large_model"}
    assert sum(trained.model.importance.values()) == pytest.approx(1)


def test_same_input_same_model(corpus: LabelledRecords, trained: Trained) -> None:
    again = train(corpus, TrainOptions.model_validate(RECIPE), jobs=2)
    for output, arrays in trained.model.forests.items():
        for name in arrays.NAMES:
            assert getattr(arrays, name).tobytes() == getattr(again.model.forests[output], name).tobytes()
    assert again.scores == trained.scores


def test_model_folder_serves_what_was_trained(corpus: LabelledRecords, trained: Trained, tmp_path: Path) -> None:
    write_trained(tmp_path / "model", trained)
    read_model(tmp_path / "model", everything=True)
    classifier = Classifier.load(tmp_path / "model")
    # skops asks for trust in the tree's node numbers only; this test wrote them itself.
    trusted = ["sklearn.tree._tree.Tree"]
    assert set(skops.io.get_untrusted_types(file=tmp_path / "model" / "forest.skops")) <= set(trusted)
    forests = read_sklearn(tmp_path / "model")
    matrix = features(corpus.records)
    for output, forest in forests.items():
        served = classifier.probabilities(corpus.records, output)
        assert np.abs(served - forest.predict_proba(matrix)).max() < 1e-6
    verdicts = classifier.classify(corpus.records)
    assert np.array_equal(verdicts["class_id"], decide(classifier.calibrated(corpus.records), 0.7))
    assert np.allclose(verdicts["confidence"], classifier.calibrated(corpus.records).max(axis=1), atol=1e-6)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    pictures = {"confusion-matrix", "calibration", "accuracy-by-checkpoint", "feature-importance"}
    assert names == {"model.json", "forest.npz", "forest.skops", "scores.json", "card.md"} | {
        f"{name}.png" for name in pictures
    }
    text = (tmp_path / "model" / "card.md").read_text()
    f1 = trained.scores["test"]["held-out models"]["flows"]["macro_f1"]
    assert f"**Macro-F1 {f1:.3f}**" in text
    assert all(f"({name}.png)" in text for name in pictures)


def test_excluded_and_absent_features_are_not_used(corpus: LabelledRecords) -> None:
    options = TrainOptions.model_validate(
        {**RECIPE, "folds": 0, "exclude_features": ["tcp_window_mean"], "absent_fields": ["len_sumsq"]}
    )
    model = train(corpus, options, jobs=1).model
    missing = {"tcp_window_mean", "packet_size_std", "fwd_packet_size_std", "rev_packet_size_std"}
    assert set(FEATURE_NAMES) - set(model.features) == missing
    assert len(Classifier(model).classify(corpus.records)) == len(corpus)
    with pytest.raises(UsageError, match="shoe_size"):
        TrainOptions(exclude_features=("shoe_size",)).feature_names()


def test_names_that_hold_out_nothing_are_told(corpus: LabelledRecords) -> None:
    held_out = HeldOut(transports=("nfs/*", "data/*"), models=("large-70b", "llama"), links=("10g",))
    assert held_out.unused(corpus) == ["transports: nfs/*", "models: llama"]


def test_missing_group_is_refused(corpus: LabelledRecords) -> None:
    with pytest.raises(DinnetError, match="no training records of control"):
        train(corpus, TrainOptions.model_validate({"held_out": {"transports": ["control/*"]}}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("held_out: {ports: [80]}", "held_out.ports"),
        ("forest: {trees: none}", "forest.trees"),
        ("threshold: 1.5", "threshold"),
        ("threshold: [", "not YAML"),
        ("- 1", "valid dictionary"),
    ],
)
def test_bad_recipes(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(DinnetError, match=reason) as caught:
        TrainOptions.read(tmp_path / "recipe.yaml")
    assert "recipe.yaml" in str(caught.value)
    with pytest.raises(DinnetError, match="cannot be read"):
        TrainOptions.read(tmp_path / "nothing.yaml")


def test_recipe_takes_the_names_of_a_recording_plan(tmp_path: Path) -> None:
    plan = "{seed: 1, scenarios: 3, workloads: {other: 1}, held_out: {scenarios: 4, transports: [a, b], links: [far]}}"
    (tmp_path / "plan.yaml").write_text(plan)
    (tmp_path / "recipe.yaml").write_text("{seed: 9, held_out: {plan: plan.yaml, transports: [c], scenarios: [real]}}")
    options = TrainOptions.read(tmp_path / "recipe.yaml")
    assert options.seed == 9
    assert options.held_out.model_dump() == {
        "transports": ("a", "b", "c"), "models": (), "links": ("far",), "scenarios": ("real",)
    }  # fmt: skip
    assert TrainOptions.read(tmp_path / "plan.yaml").held_out.transports == ("a", "b")
    (tmp_path / "recipe.yaml").write_text("{held_out: {plan: gone.yaml}}")
    with pytest.raises(DinnetError, match=r"gone\.yaml: cannot be read"):
        TrainOptions.read(tmp_path / "recipe.yaml")


# --- command line


def test_commands(tmp_path: Path) -> None:
    from dinnet.cli import evaluate as evaluate_command
    from dinnet.cli import features as features_command

    corpus = tmp_path / "corpus"
    corpus.mkdir()
    make(1).save(corpus / "a.npz")
    make(2, link="10g").save(corpus / "b.npz")
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({**RECIPE, "held_out": {"links": ["10g"], "transports": ["*/way-3"]}, "folds": 0})
    )
    runner = CliRunner()
    model = str(tmp_path / "model")
    arguments = [str(corpus), "-o", model, "--config", str(tmp_path / "recipe.yaml"), "--seed", "7", "-j", "1"]
    result = runner.invoke(train_command.app, arguments)
    assert result.exit_code == 0, result.output
    assert read_model(Path(model)).info["options"]["seed"] == 7

    result = runner.invoke(evaluate_command.app, ["--model", model, str(corpus), "--format", "json"])
    assert result.exit_code == 0, result.output
    parts = json.loads(result.stdout)["parts"]
    assert set(parts) == {"held-out", "held-out links", "held-out transports"}
    assert parts["held-out links"]["n_flows"] == 200
    assert parts == json.loads((tmp_path / "model" / "scores.json").read_text())["test"]

    result = runner.invoke(features_command.app, ["explain", "direction_ratio", "--model", model, "--format", "json"])
    (row,) = json.loads(result.stdout)
    assert row["formula"] == "fwd_packets / packets"
    assert 0 <= row["importance"] < 1
    result = runner.invoke(features_command.app, ["explain", "shoe_size"])
    assert isinstance(result.exception, UsageError)


def test_names_of_the_made_up_corpus_match_its_labels() -> None:
    labelled = make(9, flows=50)
    assert all(TRANSPORTS[t].startswith(GROUPS[g]) for t, g in zip(labelled.transport, labelled.group, strict=True))
    assert all((MODELS[m] == "") == (g == 4) for m, g in zip(labelled.model, labelled.group, strict=True))
