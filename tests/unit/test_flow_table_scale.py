"""Ten million flows through the flow table: each one counted, in memory for those that are live."""

from __future__ import annotations

import peakmemory
import pytest

FLOWS = 10_000_000

#: One packet a flow, a flow every 10 us; a flow is idle after 1 s, so that about 100,000 of them are live.
COUNT = """
import capturekit as kit
import numpy as np
from dinnet.flows.table import FlowOptions, FlowTable

flows, batch = int(sys.argv[1]), 16_384
table = FlowTable(FlowOptions(idle_timeout_s=1))
seen = np.ones(flows, np.uint8)  # written to once, so that its memory is taken before the first measurement
seen[:] = 0
packets = np.repeat(kit.rows([kit.row(0, payload=100)]), batch)
first_address = int(packets["src_lo"][0])
records = most_live = wrong = 0
peaks = []

def take(ended):
    global records, wrong
    records += len(ended)
    wrong += int((ended["fwd_packets"] != 1).sum() + (ended["fwd_bytes"] != 140).sum() + ended["rev_packets"].sum())
    seen[(ended["src_lo"] - first_address).astype(np.int64)] += 1

for start in range(0, flows, batch):
    numbers = np.arange(start, min(start + batch, flows))
    some = packets[: len(numbers)]
    some["src_lo"] = first_address + numbers
    some["sport"] = 1024 + numbers % 60_000
    some["time_us"] = kit.T0 + 10 * numbers
    take(table.update(some))
    most_live = max(most_live, table.live)
    if (start + batch) * 10 // flows > len(peaks):  # after each tenth
        peaks.append(peak_mib())
for ended in table.flush(kit.T0 + 10 * flows):
    take(ended)
print(json.dumps({
    "records": records, "wrong": wrong, "most_live": most_live, "left": table.live, "peaks_mib": peaks,
    "exactly_once": int((seen == 1).sum()),
}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_million_flows_in_memory_for_the_live_ones() -> None:
    said = peakmemory.result(peakmemory.start(COUNT, str(FLOWS)))
    assert (said["records"], said["exactly_once"], said["wrong"], said["left"]) == (FLOWS, FLOWS, 0, 0)
    # Idle for a second at 100,000 new flows a second, and up to a quarter of that until the next sweep.
    assert 100_000 < said["most_live"] < 200_000
    # The table was as large after the first million as it ever got; all rows at once would take 4 GiB more.
    assert len(said["peaks_mib"]) == 10
    assert said["peaks_mib"][-1] < said["peaks_mib"][0] + 64
