"""Every shared capture against the counts of tshark, with the differences named, reasoned and counted.

The counts were recorded by `tests/capture_oracle.py`. The folder of captures is `$DINNET_CAPTURES`, or
`shared/captures` beside the repository; without it these tests are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import capture_oracle
import capturekit as kit
import pytest

from dinnet.capture import CaptureError

FOLDER = Path(os.environ.get("DINNET_CAPTURES", Path(__file__).parents[3] / "shared" / "captures"))
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no captures at {FOLDER}")

#: Link types that are refused, with the number of captures that have them.
REFUSED_LINKS = {
    8: 4, 104: 1, 105: 2, 106: 1, 107: 6, 123: 2, 127: 94, 129: 1, 137: 3, 149: 1, 160: 1, 164: 1, 178: 2, 182: 4,
    195: 3, 230: 1, 239: 2, 258: 1, 282: 1, 284: 1, 285: 1,
}  # fmt: skip

#: Where dinnet and tshark differ: the reason, and the figures of each file in which they differ.
ALL = {f"{side} {name}" for side in ("outer", "inner") for name in ("packets", "bytes", "flows", "digest")}
PROTOCOL = {f"{side} {name}" for side in ("outer", "inner") for name in ("packets", "digest")}
INNER = {"inner packets", "inner bytes", "inner digest"}
LENGTH = {"outer bytes", "inner bytes"}
DIFFERENCES: dict[str, dict[str, set[str]]] = {
    # A length field of 0 means the wire length (segmentation offload, jumbograms); this tshark takes it for an empty
    # packet. The right figures are in ZERO_LENGTH.
    "IP length 0": {
        "tcpdump/bigtcp-ipv4-geneve-ipv4.pcap": INNER,
        "tcpdump/bigtcp-ipv4-vxlan-ipv6.pcap": INNER,
        "tcpdump/bigtcp-ipv6-geneve-ipv4.pcap": INNER | {"outer bytes", "outer digest"},
        "tcpdump/bigtcp-ipv6-vxlan-ipv4.pcap": INNER | {"outer bytes", "outer digest"},
        "tcpdump/bigtcp-ipv6.pcap": {"outer bytes", "outer digest", "inner bytes", "inner digest"},
        "tcpdump/ipv6_jumbogram_invalid_length.pcap": LENGTH,
        "tcpdump/quic_32_bit_pointer_overflow.pcap": LENGTH,
    },
    # The mobility header (RFC 6275) is an extension header: what follows it is the protocol, which is none (59).
    # tshark's oracle names the header itself (135).
    "mobility header is walked": {
        "tcpdump/ipv6_mobility_1.pcap": PROTOCOL,
        "zeek/chksums__mip6-bad-mh-chksum.pcap": PROTOCOL,
        "zeek/mobile-ipv6__mip6_back.pcap": PROTOCOL,
        "zeek/mobile-ipv6__mip6_cot.pcap": PROTOCOL,
        "zeek/mobile-ipv6__mip6_hot.pcap": PROTOCOL,
        "zeek/mobile-ipv6__mip6_hoti.pcap": PROTOCOL,
    },
    # tshark looks behind these, dinnet does not: MACsec, Cisco FabricPath and VN-Tag count as not IP.
    "encapsulation below IP that is not opened": {
        "tcpdump/macsec-integonly.pcap": ALL,
        "tcpdump/macsec-short-longer.pcap": ALL,
        "zeek/cisco-fabric-path.pcap": ALL,
        "zeek/vntag_vlan_sandwich_clean.pcap": ALL,
    },
    # Type I has no header of its own and is given up in favour of the outer flow.
    "ERSPAN type I is not opened": {"tcpdump/erspan-type-i-1.pcap": INNER},
    # An IP header or extension header that the capture cut off: dinnet keeps the last protocol and addresses it could
    # read, tshark's fields stop at another byte.
    "header cut by the capture": {
        "tcpdump/hoobr_rt6_print.pcap": PROTOCOL,
        "zeek/trunc__ipv4-internally-truncated-header.pcap": ALL,
    },
    # A frame that claims 0 bytes on the wire and has 4 captured: at least those were there.
    "less on the wire than captured": {"tcpdump/pim_header_asan-2.pcap": {"bytes"}},
}

#: (outer, inner) IP bytes of the one packet in each file: the frame less the headers before, added up by hand.
ZERO_LENGTH = {
    "tcpdump/bigtcp-ipv4-geneve-ipv4.pcap": (80_116 - 14, 80_116 - 14 - 20 - 8 - 8 - 14),
    "tcpdump/bigtcp-ipv4-vxlan-ipv6.pcap": (80_060 - 14, 80_060 - 14 - 20 - 8 - 8 - 14),
    "tcpdump/bigtcp-ipv6-geneve-ipv4.pcap": (80_136 - 14, 80_136 - 14 - 40 - 8 - 8 - 14),
    "tcpdump/bigtcp-ipv6-vxlan-ipv4.pcap": (80_136 - 14, 80_136 - 14 - 40 - 8 - 8 - 14),
    "tcpdump/bigtcp-ipv6.pcap": (80_054 - 14, 80_054 - 14),
    "tcpdump/ipv6_jumbogram_invalid_length.pcap": (65_590 - 14, 65_590 - 14),
    "tcpdump/quic_32_bit_pointer_overflow.pcap": (58_451, 58_451),
}


@cache
def oracle() -> dict[str, Any]:
    return capture_oracle.load()["files"]  # type: ignore[no-any-return]


def summary(path: Path) -> dict[str, Any]:
    """What dinnet counts, in the oracle's form."""
    out: dict[str, Any] = {}
    for tunnel in ("outer", "inner"):
        reading = kit.read(path, tunnel=tunnel)
        stats = reading.stats
        assert stats.frames == len(reading.all) == stats.flow_packets + stats.not_ip + stats.malformed
        assert stats.flow_packets == len(reading.packets)
        side = capture_oracle.Side()
        for row in reading.packets:
            side.add(*kit.five_tuple(row), int(row["ip_bytes"]))
        out |= {"frames": stats.frames, "bytes": stats.frame_bytes, tunnel: side.summary()}
    return out


def differences(want: dict[str, Any], got: dict[str, Any]) -> set[str]:
    out = {name for name in ("frames", "bytes") if want[name] != got[name]}
    for side in ("outer", "inner"):
        out |= {f"{side} {name}" for name in want[side] if want[side][name] != got[side][name]}
    return out


def test_the_oracle_knows_every_capture() -> None:
    found = {path.relative_to(FOLDER).as_posix() for path in capture_oracle.captures(FOLDER)}
    assert found == set(oracle())


def test_every_capture_is_read_with_the_counts_of_tshark() -> None:
    refused: Counter[int] = Counter()
    empty = []
    found: dict[str, set[str]] = {}
    compared = 0
    for name, want in oracle().items():
        try:
            got = summary(FOLDER / name)
        except CaptureError as error:
            assert "\n" not in str(error)
            words = str(error).replace(":", " ").split()
            if "type" in words:
                refused[int(words[words.index("type") + 1])] += 1
            else:
                empty.append((name, (FOLDER / name).stat().st_size))
            continue
        compared += 1
        if unlike := differences(want, got):
            found[name] = unlike
    assert refused == REFUSED_LINKS
    assert empty == [("zeek/modbus__modbus.pcap", 0)]
    assert found == {name: fields for files in DIFFERENCES.values() for name, fields in files.items()}
    assert compared == len(oracle()) - 1 - sum(REFUSED_LINKS.values())


def test_the_named_differences_are_few() -> None:
    assert {reason: len(files) for reason, files in DIFFERENCES.items()} == {
        "IP length 0": 7,
        "mobility header is walked": 6,
        "encapsulation below IP that is not opened": 4,
        "ERSPAN type I is not opened": 1,
        "header cut by the capture": 2,
        "less on the wire than captured": 1,
    }
    assert set(ZERO_LENGTH) == set(DIFFERENCES["IP length 0"])


@pytest.mark.parametrize("name", ZERO_LENGTH)
def test_length_zero_means_the_wire_length(name: str) -> None:
    got = summary(FOLDER / name)
    assert (got["outer"]["bytes"], got["inner"]["bytes"]) == ZERO_LENGTH[name]
