"""The typed view of a P4Info, and P4Runtime's byte strings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from finsy.proto import p4i
from hypothesis import given
from hypothesis import strategies as st
from p4infokit import ACTIONS, COUNTERS, FLOW_RECORD, MICROFLOW_METER, RECORD_FIELDS, TABLES, dinnet_p4info

from dinnet.switch.bytestrings import to_bytes, to_int, to_signed_bytes
from dinnet.switch.codes import Code, Refused
from dinnet.switch.p4info import ActionCall, LeafKind, MatchKind, P4InfoError, Scope, parse_p4info


def test_tables_are_seen_whole() -> None:
    info = parse_p4info(dinnet_p4info())
    microflow = info.table("microflow")
    assert microflow.id == TABLES["microflow"] and microflow.size == 1048576
    assert [(field.name, field.kind, field.width) for field in microflow.fields] == [
        ("src", MatchKind.EXACT, 128),
        ("dst", MatchKind.EXACT, 128),
        ("proto", MatchKind.EXACT, 8),
        ("sport", MatchKind.EXACT, 16),
        ("dport", MatchKind.EXACT, 16),
        ("vlan", MatchKind.EXACT, 12),
        ("flow_label", MatchKind.EXACT, 20),
    ]
    assert microflow.has_idle_timeout and not microflow.has_priority and microflow.const_default
    assert microflow.counter is not None and microflow.meter is not None and microflow.meter.id == MICROFLOW_METER
    assert info.table("slice_select").has_priority
    assert info.table("forward_v6").fields[0].kind is MatchKind.LPM


def test_defaults_and_scopes() -> None:
    info = parse_p4info(dinnet_p4info())
    l2 = info.table("forward_l2")
    assert not l2.const_default and l2.initial_default == ActionCall(ACTIONS["NoAction"])
    assert l2.actions[ACTIONS["NoAction"]] is Scope.DEFAULT_ONLY and l2.actions[ACTIONS["flood"]] is Scope.ANYWHERE
    assert info.table("exceed").initial_default == ActionCall(ACTIONS["degrade"])
    assert [param.width for param in info.action("reroute").params] == [9, 48, 48]


def test_indexed_resources_headers_and_digest() -> None:
    info = parse_p4info(dinnet_p4info())
    assert info.counters[COUNTERS["marked"]].size == 256
    assert info.packet_in is not None and [field.width for field in info.packet_in.fields] == [9, 7]
    leaves = dict(info.digests[FLOW_RECORD].leaves)
    assert list(leaves) == [name for name, _ in RECORD_FIELDS]
    assert leaves["end"].kind is LeafKind.ENUM and leaves["end"].width == 8


def _lose_action(info: p4i.P4Info) -> None:
    del info.actions[1]


def _lose_width(info: p4i.P4Info) -> None:
    info.tables[0].match_fields[0].bitwidth = 0


def _repeat_id(info: p4i.P4Info) -> None:
    info.tables[1].preamble.id = info.tables[0].preamble.id


def _repeat_field(info: p4i.P4Info) -> None:
    info.tables[3].match_fields[1].id = 1


def _own_matching(info: p4i.P4Info) -> None:
    info.tables[0].match_fields[0].other_match_type = "fuzzy"


def _lose_resource(info: p4i.P4Info) -> None:
    del info.direct_counters[:]


def _lose_struct(info: p4i.P4Info) -> None:
    info.type_info.Clear()


def _steal_resource(info: p4i.P4Info) -> None:
    info.direct_meters[0].direct_table_id = TABLES["exceed"]


def _two_headers(info: p4i.P4Info) -> None:
    info.controller_packet_metadata[1].preamble.name = "packet_in"


@pytest.mark.parametrize(
    "damage",
    [
        _lose_action,
        _lose_width,
        _repeat_id,
        _repeat_field,
        _own_matching,
        _lose_resource,
        _lose_struct,
        _steal_resource,
        _two_headers,
    ],
)
def test_contradictions_are_refused(damage: Callable[[p4i.P4Info], None]) -> None:
    info = dinnet_p4info()
    damage(info)
    with pytest.raises(P4InfoError):
        parse_p4info(info)


def test_action_profiles_are_known_but_not_served() -> None:
    info = dinnet_p4info()
    info.action_profiles.add(preamble=p4i.Preamble(id=0x11000001, name="profile"))
    info.tables[0].implementation_id = 0x11000001
    assert parse_p4info(info).unserved == {0x11000001: "profile"}


#: The tables "Examples of Valid / Invalid Bytestring Encoding" of the specification, as far as they are unsigned.
@pytest.mark.parametrize(
    ("width", "data", "value"),
    [
        (8, b"\x63", 99),
        (16, b"\x00\x63", 99),
        (16, b"\x63", 99),
        (16, b"\x30\x64", 12388),
        (16, b"\x00\x30\x64", 12388),
        (12, b"\x00\x63", 99),
        (12, b"\x00\x00\x63", 99),
        (9, b"\x01\xff", 511),
    ],
)
def test_valid_byte_strings(width: int, data: bytes, value: int) -> None:
    assert to_int(data, width) == value


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (8, b"\x01\x63"),
        (8, b""),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
        (9, b"\x02\x00"),
    ],
)
def test_invalid_byte_strings(width: int, data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        to_int(data, width)
    assert refused.value.code is Code.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("value", "data"),
    [(99, b"\x63"), (-99, b"\x9d"), (-739, b"\xfd\x1d"), (0, b"\x00"), (127, b"\x7f"), (128, b"\x00\x80")],
)
def test_signed_byte_strings(value: int, data: bytes) -> None:
    assert to_signed_bytes(value) == data


@given(st.integers(0, (1 << 128) - 1))
def test_the_shortest_string_is_sent(value: int) -> None:
    data = to_bytes(value)
    assert to_int(data, 128) == value
    assert len(data) == 1 or data[0] != 0
