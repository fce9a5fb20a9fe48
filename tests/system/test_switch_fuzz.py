"""Ten seconds of hostile packets. `python tests/fuzz_switch.py --seconds 600` goes on for longer."""

from __future__ import annotations

import random

import pytest
import switch_model
import switchkit

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

import fuzz_switch

pytestmark = [switchkit.needs_bpf, pytest.mark.root]


@pytest.mark.slow
def test_hostile_packets_for_ten_seconds() -> None:
    counted = fuzz_switch.fuzz(10, random.SystemRandom().getrandbits(32))
    for name in ("test runs", "veths"):
        assert counted[name]["checks"] > 0
        for kind in ("hostile", "known", "parsed IPV4", "parsed IPV6", "parsed FRAGMENT", "drops MALFORMED"):
            assert counted[name][kind] > 0, (name, kind)


def test_the_fuzzer_sees_a_wrong_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model that marks one slice otherwise, it must find a difference."""
    monkeypatch.setattr(switch_model.Tables, "_mark", lambda self, p: 0)
    with pytest.raises(fuzz_switch.Difference):
        fuzz_switch.fuzz(5, 1)
