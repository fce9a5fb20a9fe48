"""What an intent file may say, and how what it may not say is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from dinnet.controller.desired import host_state, switch_entities
from dinnet.controller.intent import Intent, load_intent
from dinnet.controller.values import rate_bps
from dinnet.dataplane.codec import Codec
from dinnet.dataplane.entity import DefaultEntry, Lpm, MeterCell, Rates, Ternary
from dinnet.dataplane.program import dinnet_program
from dinnet.dataplane.tables import ForwardV4, IntNode, IntSource, MarkToDscp, Route, SliceSelect
from dinnet.errors import DinnetError

INVALID = sorted(Path(__file__).with_name("invalid_intents").glob("*.yaml"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "intent.yaml"


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_a_bad_intent_is_refused_with_line_and_reason(path: Path) -> None:
    expected = path.read_text().rpartition("# refused: line ")[2].strip()
    line, _, reason = expected.partition(": ")
    with pytest.raises(DinnetError) as refused:
        load_intent(path)
    told = str(refused.value)
    assert told.startswith(f"{path}:{line}: ")
    assert reason in told
    assert "\n" not in told


def test_there_are_bad_intents_to_refuse() -> None:
    assert len(INVALID) >= 25


def test_the_example_becomes_entities_that_fit_the_program() -> None:
    intent = load_intent(EXAMPLE)
    entities = switch_entities(intent, "edge-1")
    codec = Codec(dinnet_program())
    for entity in entities:
        assert codec.decode(codec.encode(entity)) == entity
    assert ForwardV4(dst=Lpm(0x0A010000, 16), action=Route(1, 0x020000000100, 0x020000000101)) in entities
    rules = [each for each in entities if isinstance(each, SliceSelect)]
    assert [(rule.proto, rule.dport, rule.action.slice, rule.action.tc) for rule in rules] == [
        (Ternary(6, 0xFF), Ternary(9000, 0xFFFF), 1, 2)
    ]


def test_shares_are_of_the_link_and_of_the_slice() -> None:
    link = host_state(load_intent(EXAMPLE), "edge-1-box").links[1]
    assert (link.device, link.rate_bps) == ("eth2", 100_000_000)
    assert [(each.number, each.guarantee_bps, each.ceiling_bps) for each in link.slices] == [
        (0, 10_000_000, 100_000_000),
        (1, 50_000_000, 100_000_000),
        (2, 20_000_000, 100_000_000),
        (3, 10_000_000, 50_000_000),
    ]
    assert [(queue.tc, queue.guarantee_bps, queue.priority) for queue in link.slices[1].queues] == [
        (0, 5_000_000, 5),
        (1, 22_500_000, 3),
        (2, 5_000_000, 1),
        (3, 17_500_000, 0),
    ]
    assert (7, 1, 3) in link.dscp and len(link.dscp) == 16


def test_rates_are_read_as_tc_reads_them() -> None:
    assert rate_bps("1.5gbit") == 1_500_000_000
    assert rate_bps("64kbit") == 64_000
    assert rate_bps(9600) == 9600


def intent(**parts: object) -> Intent:
    switch = {"address": "127.0.0.1:1", "ports": {1: {}, 2: {}}}
    return Intent.model_validate({"switches": {"s": switch}, **parts})


def test_a_dscp_plan_is_written_and_read_and_the_rest_keeps_its_coding() -> None:
    given = intent(
        dscp=[{"dscp": 46, "slice": "realtime", "tc": 3}],
        hosts={"h": {"interfaces": ["eth0"]}},
        links={"l": {"ends": ["h/eth0"], "rate": "1mbit"}},
    )
    assert [each.action.dscp for each in switch_entities(given, "s") if isinstance(each, MarkToDscp)] == [46]
    codes = host_state(given, "h").links[0].dscp
    assert (46, 1, 3) in codes
    assert 7 not in [code for code, _, _ in codes]
    assert (6, 1, 2) in codes


def test_a_policed_link_meters_each_slice_at_the_port_in_bytes() -> None:
    given = intent(links={"l": {"ends": ["s/2"], "rate": "80mbit", "police": True}})
    cells = [each for each in switch_entities(given, "s") if isinstance(each, MeterCell)]
    assert [cell.index for cell in cells] == [32, 33, 34, 35]
    # 50 % and 100 % of 80 Mbit/s; bursts of 20 ms, at least two 64 KiB frames.
    assert cells[1].rates == Rates(5_000_000, 131_072, 10_000_000, 200_000)


def test_telemetry_names_its_fields() -> None:
    switch = {
        "address": "127.0.0.1:1",
        "ports": {1: {"int_sink": True}},
        "flood_unknown": 5,
        "groups": {5: [1]},
        "telemetry": {
            "node_id": 9,
            "watch": [{"mode": "md", "src": "10.0.0.0/8", "fields": ["node_id", "ports"], "priority": 3}],
        },
    }
    found = switch_entities(Intent.model_validate({"switches": {"s": switch}}), "s")
    source = next(each for each in found if isinstance(each, IntSource))
    assert source.src == Ternary(0xFFFF_0A00_0000, ((1 << 104) - 1) << 24)
    assert (source.action.instructions, source.action.hops) == (0xC000, 8)  # INT 2.1, section 5.7
    node = next(each for each in found if isinstance(each, IntNode))
    assert (node.action.node_id, node.action.is_sink, node.action.mtu) == (9, 1, 1500)
    assert any(isinstance(each, DefaultEntry) for each in found)
