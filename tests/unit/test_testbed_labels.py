"""Labels join flow records by 5-tuple in either direction and by time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from dinnet.classifier.corpus import GROUPS
from dinnet.errors import DinnetError
from dinnet.flows.record import RECORD_DTYPE, End
from dinnet.testbed.labels import SLACK_US, all_background, join, read_labels, thinned
from dinnet.testbed.workloads.base import Label

T0 = 1_700_000_000_000_000
MAPPED = 0xFFFF << 32
CLIENT, SERVER = 0x0A4D0001, 0x0A4D0002  # 10.77.0.1, 10.77.0.2


def record(sport: int, dport: int, *, at: int = T0, lasts: int = 1_000_000, checkpoint: int = 1, end: int = 0,
           reverse: bool = False, proto: int = 6, payload: int = 1) -> np.ndarray:  # fmt: skip
    """One flow record of client:sport -> server:dport, or as seen from the other side."""
    made = np.zeros(1, RECORD_DTYPE)
    src, dst = (SERVER, CLIENT) if reverse else (CLIENT, SERVER)
    made["src_lo"], made["dst_lo"] = MAPPED | src, MAPPED | dst
    made["sport"], made["dport"] = (dport, sport) if reverse else (sport, dport)
    made["first_us"], made["duration_us"] = at, lasts
    made["checkpoint"], made["end"], made["proto"] = checkpoint, end, proto
    made["rev_payload_bytes"] = payload
    return made


def label(sport: int, dport: int, t0: int = T0, t1: int = T0 + 1_000_000, **other: object) -> Label:
    fields: dict[str, object] = {"proto": "tcp", "group": "decode", "transport": "tokens/x"} | other
    return Label(t0, t1, src="10.77.0.1", sport=sport, dst="10.77.0.2", dport=dport, **fields)  # type: ignore[arg-type]


def test_either_direction_and_what_the_sender_said() -> None:
    said = label(40000, 9000, model="m-70b", streaming=True, first_request=False, large_model=True)
    joined = join([record(40000, 9000, reverse=True, end=End.FIN)], [said], {"scenario": "s"})
    found = joined.labelled
    assert GROUPS[found.group[0]] == "decode"
    assert (found.streaming[0], found.first_request[0], found.large_model[0]) == (1, 0, 1)
    assert found.transports[found.transport[0]] == "tokens/x"
    assert found.models[found.model[0]] == "m-70b"
    assert found.manifest["scenario"] == "s"
    assert (joined.flows, joined.unlabelled_flows, joined.unmatched_labels) == (1, 0, 0)


def test_values_that_do_not_apply_are_minus_one() -> None:
    found = join([record(1, 2, end=End.FIN)], [label(1, 2)], {}).labelled
    assert (found.streaming[0], found.first_request[0], found.large_model[0]) == (-1, -1, -1)


def test_a_connection_that_carried_nothing_gets_no_label() -> None:
    empty = [record(1, 2, checkpoint=1, payload=0), record(1, 2, checkpoint=1, end=End.FIN, payload=0)]
    # Checkpoints before a connection's first payload are kept: a live classifier sees those, too.
    used = [record(3, 2, checkpoint=1, payload=0), record(3, 2, checkpoint=2, end=End.FIN)]
    joined = join([*empty, *used], [label(1, 2), label(3, 2)], {})
    assert joined.labelled.records["sport"].tolist() == [3, 3]
    assert (joined.flows, joined.unlabelled_flows, joined.unmatched_labels) == (2, 1, 1)


@pytest.mark.parametrize(
    "other",
    [
        record(40001, 9000, end=End.FIN),  # another port
        record(40000, 9000, end=End.FIN, proto=17),  # another protocol
        record(40000, 9000, end=End.FIN, at=T0 + 1_000_000 + SLACK_US + 1),  # later
        record(40000, 9000, end=End.FIN, at=T0 - SLACK_US - 2, lasts=1),  # earlier
    ],
    ids=["port", "protocol", "later", "earlier"],
)
def test_other_flows_stay_without_label(other: np.ndarray) -> None:
    joined = join([other], [label(40000, 9000)], {})
    assert len(joined.labelled) == 0
    assert (joined.unlabelled_flows, joined.unmatched_labels) == (1, 1)


def test_ports_used_again_go_to_the_label_that_shares_the_most_time() -> None:
    second = T0 + 1_200_000
    labels = [label(5, 6, transport="a"), label(5, 6, second, second + 2_000_000, transport="b", group="data")]
    records = [
        record(5, 6, end=End.FIN, lasts=900_000),
        record(5, 6, at=second, lasts=1_900_000, end=End.FIN),
    ]
    found = join(records, labels, {}).labelled
    assert [found.transports[index] for index in found.transport] == ["a", "b"]
    assert [GROUPS[index] for index in found.group] == ["decode", "data"]
    assert list(found.flow) == [0, 1]


def test_ipv6_addresses_join() -> None:
    made = record(7, 8, end=End.FIN)
    made["src_hi"] = made["dst_hi"] = 0xFD77 << 48
    made["src_lo"], made["dst_lo"] = 1, 2
    said = Label(T0, T0 + 1, "tcp", "fd77::1", 7, "fd77::2", 8, "control", "c")
    assert len(join([made], [said], {}).labelled) == 1


def test_checkpoints_of_a_flow_are_one_flow_even_over_batches() -> None:
    parts = [record(1, 2, checkpoint=1), record(3, 4, checkpoint=1), record(1, 2, checkpoint=2, end=End.FIN)]
    found = join(parts, [label(1, 2), label(3, 4)], {}).labelled
    assert found.flow[0] == found.flow[2] != found.flow[1]


def test_background_captures_are_other_and_keep_their_kinds_and_flows_apart() -> None:
    web = [record(1, 80, checkpoint=1), record(1, 80, checkpoint=1, end=End.FIN), record(2, 80, end=End.FIN)]
    dns = [record(1, 80, proto=17, end=End.IDLE)]
    found = all_background({"zeek/http": web, "zeek/dns": dns}, {"scenario": "zeek"})
    assert [found.transports[i] for i in found.transport] == ["zeek/dns", "zeek/http", "zeek/http", "zeek/http"]
    assert found.flow[1] == found.flow[2]
    assert len(set(found.flow.tolist())) == 3
    assert {GROUPS[g] for g in found.group} == {"other"}
    assert set(found.streaming.tolist()) == {-1}


def test_thinning_keeps_the_first_six_then_steps_and_the_end() -> None:
    records = np.concatenate([record(1, 2, checkpoint=number) for number in range(1, 21)])
    records["end"][19] = End.CAPTURE
    kept = records["checkpoint"][thinned(records, np.zeros(20, np.intp))].tolist()
    # By hand: 6 * 1.25 = 7.5 -> 8; 10; 12.5 -> 13; 16.25 -> 17; 21.25 is past the last one; and 20 is the end.
    assert kept == [1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 20]


def test_thinning_is_per_flow() -> None:
    records = np.concatenate([record(1, 2, checkpoint=n // 2 + 7) for n in range(6)])
    flow = np.array([0, 1, 0, 1, 0, 1], np.intp)
    assert records["checkpoint"][thinned(records, flow)].tolist() == [7, 7, 9, 9]


def test_labels_are_read_back_as_written(tmp_path: Path) -> None:
    said = [label(1, 2), label(3, 4, streaming=False)]
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in said))
    assert read_labels(path) == said


@pytest.mark.parametrize(
    "change",
    [{"group": "weird"}, {"src": "nowhere"}, {"proto": "sctp"}, {"extra": 1}, {"transport": None}],
    ids=["group", "address", "protocol", "unknown key", "missing key"],
)
def test_a_line_that_is_no_label_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    fields = asdict(label(1, 2)) | change
    path = tmp_path / "labels.jsonl"
    bad = {key: value for key, value in fields.items() if value is not None or key not in change}
    path.write_text(json.dumps(asdict(label(1, 2))) + "\n" + json.dumps(bad) + "\n")
    with pytest.raises(DinnetError, match=r"labels\.jsonl:2: not a label"):
        read_labels(path)
