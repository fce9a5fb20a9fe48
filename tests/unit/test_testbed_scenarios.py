"""A plan expands to the same scenarios every time, and what is held out never gets into training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from dinnet.errors import DinnetError
from dinnet.testbed.demo import demo_scenario
from dinnet.testbed.models import MODELS
from dinnet.testbed.scenario import Plan, Scenario, expand
from dinnet.testbed.workloads.base import Group
from dinnet.yamlfile import load_yaml

TRAINING = Path(__file__).parents[2] / "testbeds" / "training.yaml"
KINDS: tuple[Group, ...] = ("prefill", "decode", "control", "data", "other")
GROUPS: dict[str, Group] = {f"{group}/{letter}": group for group in KINDS for letter in "abcde"}


def plan(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "seed": 1,
        "scenarios": 40,
        "durations_s": [4, 8],
        "loads": [0.2, 0.5],
        "request_rates": [2],
        "max_bytes": 10_000_000,
        "workloads": {"prefill": 2, "decode": 1, "control": 1, "data": 1, "other": 2},
        "models": ["m1", "m2", "m3"],
        "links": [{"name": name, "rate_mbit": 100} for name in ("l1", "l2", "l3", "l4")],
        "held_out": {"scenarios": 8, "transports": ["prefill/a", "data/b"], "models": ["m3"], "links": ["l4"]},
    }
    return made | changes


def test_the_same_plan_gives_the_same_scenarios_and_another_seed_others() -> None:
    first = expand(Plan(**plan()), GROUPS)
    assert first == expand(Plan(**plan()), dict(reversed(GROUPS.items())))
    assert first != expand(Plan(**plan(seed=2)), GROUPS)
    assert len({scenario.digest() for scenario in first}) == len(first) == 48


def test_held_out_never_in_training_and_always_in_its_own_kind() -> None:
    scenarios = expand(Plan(**plan()), GROUPS)
    training = [scenario for scenario in scenarios if scenario.split == "train"]
    assert len(training) == 40
    for scenario in training:
        assert scenario.link.name != "l4"
        assert not {run.name for run in scenario.workloads} & {"prefill/a", "data/b"}
        assert "m3" not in {run.model for run in scenario.workloads}
    held = [scenario for scenario in scenarios if scenario.split == "held_out"]
    assert Counter(scenario.unseen for scenario in held) == {
        ("transport",): 2, ("model",): 2, ("link",): 2, ("transport", "model", "link"): 2,
    }  # fmt: skip
    for scenario in held:
        names = {run.name for run in scenario.workloads}
        assert ("transport" in scenario.unseen) == (names == {"prefill/a", "data/b"})
        assert ("link" in scenario.unseen) == (scenario.link.name == "l4")
        assert ("model" in scenario.unseen) == ("m3" in {run.model for run in scenario.workloads})


def test_everything_comes_about_equally_often_and_never_twice_in_a_scenario() -> None:
    training = [scenario for scenario in expand(Plan(**plan()), GROUPS) if scenario.split == "train"]
    for scenario in training:
        names = [run.name for run in scenario.workloads]
        assert len(set(names)) == len(names) == 7
    # 40 scenarios with 2 of 4 prefill transports: 20 times each; 1 of 5 decode: 8 times; 2 of 5 other: 16 times.
    uses = Counter(run.name for scenario in training for run in scenario.workloads)
    assert all(abs(uses[f"prefill/{letter}"] - 20) <= 1 for letter in "bcde")
    assert all(abs(uses[f"decode/{letter}"] - 8) <= 1 for letter in "abcde")
    assert all(abs(uses[f"other/{letter}"] - 16) <= 1 for letter in "abcde")
    links = Counter(scenario.link.name for scenario in training)
    assert all(13 <= links[name] <= 14 for name in ("l1", "l2", "l3"))


def test_budgets_fit_the_link() -> None:
    for scenario in expand(Plan(**plan(max_bytes=10**9, loads=[0.5])), GROUPS):
        carried = scenario.link.rate_mbit * 125_000 * scenario.duration_s * 0.5
        assert sum(run.byte_budget for run in scenario.workloads) == pytest.approx(carried, rel=1e-4)


def test_the_committed_plan_is_valid_and_large_enough() -> None:
    from dinnet.testbed.workloads import catalogue

    made = load_yaml(TRAINING, Plan)
    groups = {name: kind.group for name, kind in catalogue().items()}
    scenarios = expand(made, groups, list(MODELS))
    training = [scenario for scenario in scenarios if scenario.split == "train"]
    assert len(training) >= 60
    short = load_yaml(TRAINING.with_name("short.yaml"), Plan)
    added = expand(short, groups, list(MODELS))
    trained = {run.name for scenario in (*training, *added) for run in scenario.workloads}
    assert trained == set(groups) - set(made.held_out.transports)
    assert {run.model for scenario in added for run in scenario.workloads}.isdisjoint(made.held_out.models)
    assert {scenario.link.name for scenario in added}.isdisjoint(made.held_out.links)
    assert {scenario.name for scenario in added}.isdisjoint(scenario.name for scenario in scenarios)
    held_by_group = Counter(groups[name] for name in made.held_out.transports)
    assert set(held_by_group) == set(KINDS)
    assert len(made.held_out.models) >= 2
    assert len(made.held_out.links) >= 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": {"transports": ["prefill/z"]}}, "no transport named 'prefill/z'"),
        ({"held_out": {"transports": [f"data/{letter}" for letter in "abcde"]}}, "no workload of group 'data' is left"),
    ],
)
def test_a_plan_that_cannot_be_expanded_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DinnetError, match=message):
        expand(Plan(**plan(**changes)), GROUPS)


def test_unknown_models_are_refused() -> None:
    with pytest.raises(DinnetError, match="no model named 'm1'"):
        expand(Plan(**plan()), GROUPS, ["m2", "m3"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 1\n", "seed: one\n", r"plan\.yaml:\d+: seed: .*integer"),
        ("seed: 1\n", "seed: 1\nsede: 2\n", r"plan\.yaml:\d+: sede: unknown key$"),
        ("seed: 1\n", "seed: 1\nseed: 2\n", r"plan\.yaml:\d+: not valid YAML: the key 'seed' is there twice"),
        ("seed: 1\n", "", r"plan\.yaml:1: seed: this key is missing$"),
        ("seed: 1\n", "seed: [1\n", r"plan\.yaml:\d+: not valid YAML: "),
        ("rate_mbit: 100", "rate_mbit: -5", r"plan\.yaml:\d+: links\.0\.rate_mbit: .*greater than 0"),
        ("name: l1", "name: l2", r"plan\.yaml:1: links: each needs a name of its own"),
        ("- m1\n", "", None),
    ],
)
def test_a_mistake_in_the_file_gives_one_line(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    text = yaml.safe_dump(plan(), sort_keys=False)
    assert old in text
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(old, new, 1))
    if message is None:
        assert load_yaml(path, Plan).models == ("m2", "m3")
        return
    with pytest.raises(DinnetError, match=message) as caught:
        load_yaml(path, Plan)
    assert "\n" not in str(caught.value)


def test_the_line_of_a_mistake_is_the_one_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: x\nlink:\n  rate_mbit: 10\nworkloads:\n  - name: a\n  - name: b\n    byte_budget: 0\n")
    with pytest.raises(DinnetError, match=r"s\.yaml:7: workloads\.1\.byte_budget"):
        load_yaml(path, Scenario)


@pytest.mark.parametrize(("content", "message"), [(b"", ":1: a mapping"), (b"\xff\xfe\x00", "cannot read: not a text")])
def test_files_that_are_no_plan(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(content)
    with pytest.raises(DinnetError, match=message):
        load_yaml(path, Plan)
    with pytest.raises(DinnetError, match="cannot read: no such file or folder"):
        load_yaml(tmp_path / "absent.yaml", Plan)


def test_the_demo_has_all_groups() -> None:
    groups = {run.name.split("/")[0] for run in demo_scenario(GROUPS).workloads}
    assert groups == set(KINDS)
