"""The byte budget of a link, by hand."""

from __future__ import annotations

import pytest

from dinnet.errors import DinnetError
from dinnet.host.mtu import int_bytes, mtu_budget


@pytest.mark.parametrize(
    ("available", "payload", "extra", "macsec", "missing"),
    [
        (1500, 1468, 0, True, 0),
        (1500, 1469, 0, True, 1),
        (1500, 1500, 0, True, 32),
        (1500, 1500, 0, False, 0),
        (1500, 1400, 68, True, 0),
        (1500, 1400, 69, True, 1),
        (9000, 8900, 60, True, 0),
        (9000, 8900, 200, True, 132),
    ],
)
def test_missing_bytes(available: int, payload: int, extra: int, macsec: bool, missing: int) -> None:
    budget = mtu_budget("a-b", available, payload, int_bytes=extra, macsec=macsec)
    assert budget.missing_bytes == missing
    if missing:
        with pytest.raises(DinnetError, match=f"link a-b: {missing} bytes are missing"):
            budget.check()
    else:
        budget.check()


def test_macsec_is_counted_once() -> None:
    assert mtu_budget("a-b", 1500).inner_mtu == 1468  # what Linux gives a macsec interface on 1500 by itself
    assert mtu_budget("a-b", 1500, macsec=False).inner_mtu == 1500


def test_int_adds_headers_and_a_stack() -> None:
    assert int_bytes(0, 8) == 0
    # UDP 8, shim 4, metadata header 12; four hops of six words of four bytes
    assert int_bytes(4, 6) == 24 + 96
