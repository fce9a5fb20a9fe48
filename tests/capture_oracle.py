"""What tshark says about a folder of captures, in a form small enough to keep beside the tests.

`python tests/capture_oracle.py record FOLDER` runs tshark over every capture below FOLDER and writes
`tests/data/tshark_counts.json.gz`: for each file the frames, their bytes on the wire, and for the outermost and the
innermost IP header the packets of each protocol, the sum of the IP lengths, and the bidirectional 5-tuples.

tshark does the dissecting; the reading of its layers here follows the documented rules of what a flow is:

- a header quoted inside ICMP is no packet of its own;
- tunnels are those that dinnet opens (`TUNNELS`): behind any other, the flow is the outer one;
- a tunnel packet that is itself fragmented is not opened, so that all its fragments are one flow;
- ports are those of TCP, UDP, SCTP and DCCP, and 0 for everything else;
- a non-first fragment has the ports of its first fragment where that was captured before, else 0.
"""

from __future__ import annotations

import gzip
import hashlib
import ipaddress
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORE = Path(__file__).parent / "data" / "tshark_counts.json.gz"

EXTENSIONS = {"ah", "ipv6", "ipv6.hopopts", "ipv6.routing", "ipv6.dstopts", "ipv6.fraghdr"}

#: Layers that may lie between two IP headers of a tunnel that dinnet opens, by tshark's names.
TUNNELS = {
    *("eth", "ethertype", "vlan", "ieee8021ad", "mpls", "pppoes", "ppp", "udp", "gre", "erspan", "vxlan", "geneve"),
    *("gtp", "gtp.ext_hdr", *EXTENSIONS),
}

#: Of those, the ones that dinnet opens only directly behind certain others.
ONLY_BEHIND = {
    "eth": {"gre", "erspan", "vxlan", "geneve"},  # not IP protocol 143
    "mpls": {"eth", "ethertype", "gre", "vlan", "ppp"},  # not UDP port 6635
    "gre": {"ip", *EXTENSIONS},  # not UDP port 4754
}

#: tshark's name of the field that says which protocol follows, for each layer that can end in another one.
NEXT = {
    "ip": "ip.proto",
    "ipv6": "ipv6.nxt",
    "ipv6.hopopts": "ipv6.hopopts.nxt",
    "ipv6.routing": "ipv6.routing.nxt",
    "ipv6.fraghdr": "ipv6.fraghdr.nxt",
    "ipv6.dstopts": "ipv6.dstopts.nxt",
    "ah": "ah.next_header",
}
PORTS = {name: (f"{name}.srcport", f"{name}.dstport") for name in ("tcp", "udp", "sctp", "dccp")}
FIELDS = [
    "frame.number",
    "frame.len",
    "frame.protocols",
    "ip.src",
    "ip.dst",
    "ip.len",
    "ip.id",
    "ip.frag_offset",
    "ip.flags.mf",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.plen",
    "ipv6.fraghdr.ident",
    "ipv6.fraghdr.offset",
    "ipv6.fraghdr.more",
    *NEXT.values(),
    *(port for pair in PORTS.values() for port in pair),
]
QUIET = [
    f"{name}:FALSE"
    for name in (
        "ip.defragment",
        "ipv6.defragment",
        "tcp.desegment_tcp_streams",
        "tcp.analyze_sequence_numbers",
    )
]

FiveTuple = tuple[str, int, str, int, int]


@dataclass
class Header:
    """One IP header of a frame, with what follows it."""

    src: str
    dst: str
    proto: int
    length: int
    ident: int = 0
    offset: int = 0
    more: bool = False
    sport: int = 0
    dport: int = 0
    tunnel: bool = True  # reached through layers that dinnet opens

    @property
    def fragment(self) -> bool:
        return self.more or self.offset > 0


@dataclass
class Side:
    """Sums over the outermost or the innermost headers of a capture."""

    packets: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    tuples: set[tuple[Any, ...]] = field(default_factory=set)

    def add(self, src: str, sport: int, dst: str, dport: int, proto: int, length: int) -> None:
        self.packets[proto] += 1
        self.bytes += length
        self.tuples.add((*sorted([(src, sport), (dst, dport)]), proto))

    def summary(self) -> dict[str, Any]:
        digest = hashlib.sha256(repr(sorted(self.tuples)).encode()).hexdigest()[:12]
        packets = {str(proto): count for proto, count in sorted(self.packets.items())}
        return {"packets": packets, "bytes": self.bytes, "flows": len(self.tuples), "digest": digest}


def tshark_rows(path: Path) -> Iterator[dict[str, str]]:
    """The fields of each frame, as tshark prints them."""
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "separator=|", "-E", "aggregator=,"]
    command += ["-d", "udp.port==8472,vxlan"]  # the port of Linux before IANA gave one
    for quiet in QUIET:
        command += ["-o", quiet]
    for name in FIELDS:
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, check=False, text=True, errors="replace")
    if "-o flag" in done.stderr or "aren't valid" in done.stderr:
        raise SystemExit(done.stderr)  # a preference or field that this tshark does not have
    for line in done.stdout.splitlines():
        values = line.split("|")
        if len(values) == len(FIELDS):
            yield dict(zip(FIELDS, values, strict=True))


def number(text: str) -> int:
    return {"True": 1, "False": 0}[text] if text in ("True", "False") else int(text, 0)


def headers(row: dict[str, str]) -> list[Header]:
    """The IP headers of a frame, outermost first, up to the first ICMP."""
    waiting = {name: list(filter(None, row[name].split(","))) for name in FIELDS[3:]}

    def take(name: str, default: str = "0") -> str:
        return waiting[name].pop(0) if waiting[name] else default

    out: list[Header] = []
    opened = True
    before = ""
    for layer in row["frame.protocols"].split(":"):
        if layer in ("ip", "ipv6"):
            src = take(f"{layer}.src", "")
            dst = take(f"{layer}.dst", "")
            if not src or not dst:
                break
            proto = number(take(NEXT[layer], "59"))
            if layer == "ip":
                header = Header(src, dst, proto, number(take("ip.len")), number(take("ip.id")))
                header.offset, header.more = number(take("ip.frag_offset")), bool(number(take("ip.flags.mf")))
            else:
                header = Header(src, dst, proto, 40 + number(take("ipv6.plen")))
            header.tunnel = opened
            out.append(header)
        elif layer in ("icmp", "icmpv6"):
            break
        elif out and layer in NEXT:
            out[-1].proto = number(take(NEXT[layer], str(out[-1].proto)))
            if layer == "ipv6.fraghdr":
                out[-1].ident = number(take("ipv6.fraghdr.ident"))
                out[-1].offset = number(take("ipv6.fraghdr.offset"))
                out[-1].more = bool(number(take("ipv6.fraghdr.more")))
        elif out and layer in PORTS:
            source, target = (number(take(name)) for name in PORTS[layer])
            if (out[-1].sport, out[-1].dport) == (0, 0) and out[-1].proto in (6, 17, 33, 132):
                out[-1].sport, out[-1].dport = source, target
        if out and layer not in TUNNELS | {"ip"}:
            opened = False
        if out and layer in ONLY_BEHIND and before not in ONLY_BEHIND[layer]:
            opened = False
        if out and out[-1].fragment:
            opened = False
        before = layer
    return out


class Fragments:
    """Ports of first fragments, for the fragments behind them."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str, int, int], tuple[int, int]] = {}

    def settle(self, header: Header) -> None:
        key = (header.src, header.dst, header.proto, header.ident)
        if header.offset:
            header.sport, header.dport = self._ports.get(key, (0, 0))
        elif header.more:
            self._ports[key] = (header.sport, header.dport)


def canonical(address: str) -> str:
    value = ipaddress.ip_address(address)
    if value.version == 6 and value.ipv4_mapped:
        return str(value.ipv4_mapped)
    return str(value)


def summarise(rows: Iterable[dict[str, str]]) -> dict[str, Any]:
    frames = total = 0
    sides = {"outer": Side(), "inner": Side()}
    fragments = {"outer": Fragments(), "inner": Fragments()}
    for row in rows:
        frames += 1
        total += int(row["frame.len"])
        found = headers(row)
        if not found:
            continue
        opened = [h for n, h in enumerate(found) if all(x.tunnel for x in found[: n + 1])] or found[:1]
        for name, header in (("outer", found[0]), ("inner", opened[-1])):
            fragments[name].settle(header)
            src, dst = canonical(header.src), canonical(header.dst)
            sides[name].add(src, header.sport, dst, header.dport, header.proto, header.length)
    return {"frames": frames, "bytes": total} | {name: side.summary() for name, side in sides.items()}


def captures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and {".pcap", ".pcapng", ".cap"} & set(p.suffixes))


def load() -> dict[str, Any]:
    """The stored counts: {"tshark": version, "files": {relative path: counts}}."""
    with gzip.open(STORE, "rt") as stream:
        return json.load(stream)  # type: ignore[no-any-return]


def record(folder: Path) -> None:
    version = subprocess.run(["tshark", "--version"], capture_output=True, check=True, text=True).stdout.splitlines()[0]
    store({p.relative_to(folder).as_posix(): summarise(tshark_rows(p)) for p in captures(folder)}, version)


def store(files: dict[str, Any], version: str) -> None:
    text = json.dumps({"tshark": version, "files": files}, separators=(",", ":"), sort_keys=True)
    STORE.parent.mkdir(exist_ok=True)
    with STORE.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as stream:
        stream.write(text.encode())
    sys.stderr.write(f"{len(files)} files in {STORE} ({STORE.stat().st_size} bytes)\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "record":
        sys.exit("usage: python tests/capture_oracle.py record FOLDER")
    record(Path(sys.argv[2]))
