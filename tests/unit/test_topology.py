"""Testbed files: what is refused, and what follows from a topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dinnet.controller.intent import Intent
from dinnet.errors import DinnetError
from dinnet.testbed.topology import Topology, intent_of
from dinnet.yamlfile import load_yaml

ROOT = Path(__file__).parents[2]
#: a - s - t - b, with c on t.
CHAIN: dict[str, Any] = {
    "name": "chain",
    "hosts": ["a", "b", "c"],
    "switches": ["s", "t"],
    "links": [{"ends": ["a", "s"]}, {"ends": ["s", "t"], "rate_mbit": 50}, {"ends": ["b", "t"]}, {"ends": ["t", "c"]}],
}


def test_ways_are_shortest_and_ports_count_links() -> None:
    chain = Topology.model_validate(CHAIN)
    assert chain.ports("s") == {1: "a", 2: "t"}
    assert chain.ports("t") == {1: "s", 2: "b", 3: "c"}
    assert dict(chain.ways("s")) == {"a": 1, "b": 2, "c": 2}
    assert dict(chain.ways("t")) == {"a": 1, "b": 2, "c": 3}


def test_a_ring_is_crossed_the_shorter_way_round() -> None:
    names = [f"s{n}" for n in range(5)]
    ring = [{"ends": [names[n], names[(n + 1) % 5]]} for n in range(5)]
    topology = Topology.model_validate(
        {
            "name": "ring",
            "hosts": ["a", "b"],
            "switches": names,
            "links": [*ring, {"ends": ["a", "s0"]}, {"ends": ["b", "s2"]}],
        }
    )
    # s0's ports: s1, s4, a. Two steps to s2 by s1, three by s4.
    assert dict(topology.ways("s0"))["b"] == 1
    # s3's ports: s2, s4. s0 is two steps away by s4, three by s2.
    assert dict(topology.ways("s3")) == {"a": 2, "b": 1}


def test_stations_are_distinct() -> None:
    chain = Topology.model_validate(CHAIN)
    stations = [chain.station(host) for host in chain.hosts]
    for column in zip(*stations, strict=True):
        assert len(set(column)) == 3
    assert stations[2] == ("02:44:49:4e:00:03", "10.78.0.3", "fd78::3")


@pytest.mark.parametrize("slices", [False, True])
def test_the_intent_is_a_good_one(slices: bool) -> None:
    chain = Topology.model_validate(CHAIN)
    wanted = intent_of(chain, "/run/x", {"s": "ns-s", "t": "ns-t"}, slices=slices, classifier=slices)
    intent = Intent.model_validate(wanted)
    assert set(intent.links) == ({"s-to-a", "s-to-t", "t-to-s", "t-to-b", "t-to-c"} if slices else set())
    assert [(each.mac, each.port) for each in intent.switches["t"].stations] == [
        ("02:44:49:4e:00:01", 1),
        ("02:44:49:4e:00:02", 2),
        ("02:44:49:4e:00:03", 3),
    ]
    # Marks are made at the edge, and believed between switches.
    assert {port: each.trusted for port, each in intent.switches["s"].ports.items()} == {1: False, 2: True}
    if slices:
        assert intent.links["s-to-t"].rate == 50_000_000


BAD = [
    ({"hosts": ["a", "a", "b"]}, "a is there twice", "hosts"),
    ({"links": CHAIN["links"][:3]}, "host c has 0 links; it needs one", "c"),
    ({"links": [*CHAIN["links"], {"ends": ["a", "t"]}]}, "host a has 2 links", "a"),
    ({"links": [*CHAIN["links"][1:], {"ends": ["a", "x"]}]}, "there is no host and no switch x", "x"),
    ({"links": [*CHAIN["links"], {"ends": ["t", "s"]}]}, "t and s are linked already", "[t, s]"),
    ({"links": [{"ends": ["a", "b"]}, *CHAIN["links"]]}, "not a and b", "[a, b]"),
    ({"links": [CHAIN["links"][0], *CHAIN["links"][2:]]}, "no path leads from a to b", "links"),
    ({"traffic": [{"name": "x/y", "client": "a", "server": "s"}]}, "there is no host s", "server: s"),
    ({"traffic": [{"name": "x/y", "client": "a", "server": "a"}]}, "a would talk to itself", "server: a"),
    ({"intent": {"links": {}}}, "links follows from the topology", "links: {}"),
    ({"colour": 3}, "colour", "colour"),
]


@pytest.mark.parametrize(("change", "why", "place"), BAD)
def test_bad_files_are_refused_with_their_line(change: dict[str, Any], why: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**CHAIN, **change}, sort_keys=False))
    with pytest.raises(DinnetError, match=r"bad\.yaml:\d+") as told:
        load_yaml(path, Topology)
    assert why in str(told.value)


@pytest.mark.parametrize("path", sorted((ROOT / "testbeds").glob("pd_*.yaml")))
def test_the_testbeds_there_are_name_workloads_that_exist(path: Path) -> None:
    from dinnet.testbed.measured import MEASURED
    from dinnet.testbed.models import MODELS
    from dinnet.testbed.workloads import catalogue

    topology = load_yaml(path, Topology)
    known = {**catalogue(), **MEASURED}
    for each in topology.traffic:
        assert each.name in known
        assert each.model in MODELS or not known[each.name].needs_model
