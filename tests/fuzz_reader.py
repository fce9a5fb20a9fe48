"""A fuzzer for the capture reader and the flow table behind it.

`python tests/fuzz_reader.py --seconds 600 --seeds FOLDER` mutates captures until the time is up and stops at the first
input that does anything but give packets or a `CaptureError`: another exception, counts that do not add up, more than
`--limit-s` seconds or `--limit-mib` of memory. That input is left in the file that the last line names.

With atheris installed and `--atheris` given, libFuzzer chooses the inputs; coverage is then that of the Python code.
Set NUMBA_BOUNDSCHECK=1 (with a NUMBA_CACHE_DIR of its own) to have every array access of the compiled code checked.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import gzip
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import capturekit as kit
import zstandard

from dinnet.capture import CaptureError, open_capture
from dinnet.flows.table import FlowOptions, FlowTable

INTERESTING = [0, 1, 3, 4, 5, 7, 8, 15, 16, 20, 40, 60, 64, 127, 128, 255, 256, 1500, 4096, 0x7FFF, 0x8000, 0xFFFF]
INTERESTING += [0x10000, 0x40000, 0x40001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFC, 0xFFFFFFFF]


def check(data: bytes) -> int:
    """Read `data` as a capture, twice, and count its flows; returns the number of frames.

    Raises:
        AssertionError: The reader's counts contradict each other.
    """
    frames = 0
    for tunnel in ("inner", "outer"):
        table = FlowTable(FlowOptions(emit="all", idle_timeout_s=2, active_timeout_s=10))
        try:
            with open_capture(BytesIO(data), tunnel=tunnel) as capture:
                flow_rows = other_rows = 0
                for batch in capture.batches():
                    is_flow = batch["kind"] == 0
                    flow_rows += int(is_flow.sum())
                    other_rows += int((~is_flow).sum())
                    assert (batch["payload_bytes"] <= batch["ip_bytes"])[is_flow].all(), "payload larger than packet"
                    table.update(batch)
                stats = capture.stats
                assert stats.flow_packets == flow_rows
                assert stats.not_ip + stats.malformed == other_rows
                assert stats.frames == flow_rows + other_rows
                assert len(capture.warnings) <= 100
                assert bool(capture.warnings) >= stats.cut
                frames = stats.frames
                packets = sum(int((r["fwd_packets"] + r["rev_packets"]).sum()) for r in table.flush())
                assert packets <= flow_rows
        except CaptureError as error:
            assert "\n" not in str(error), "an error of more than one line"
    return frames


def sample_packets() -> tuple[bytes, bytes]:
    """An IPv4 TCP packet and an IPv6 UDP fragment behind an extension header."""
    inner = kit.ipv4(kit.tcp(1000, 80, kit.ACK, b"hello"), kit.TCP)
    inner6 = kit.ipv6(kit.ip6_options(kit.FRAGMENT) + kit.ip6_fragment(kit.UDP, 0, True, 5) + kit.udp(5, 6, b"x"), 0)
    return inner, inner6


def sample_frames() -> list[bytes]:
    """Ethernet frames with most of what the parser knows."""
    inner, inner6 = sample_packets()
    return [
        kit.ethernet(inner),
        kit.ethernet(inner6),
        kit.ethernet(inner, tags=[(kit.QINQ, 5), (kit.VLAN, 6)]),
        kit.ethernet(kit.mpls(inner, [1, 2]), kit.MPLS),
        kit.ethernet(kit.pppoe(inner6), kit.PPPOE_SESSION),
        kit.ethernet(kit.ipv4(kit.gre(inner, kit.IPV4, key=1, sequence=2, checksum=True), kit.GRE)),
        kit.ethernet(kit.ipv4(kit.udp(9, 4789, kit.vxlan(kit.ethernet(inner), 5)), kit.UDP)),
        kit.ethernet(kit.ipv6(kit.udp(9, 6081, kit.geneve(kit.ethernet(inner6), 5, option_words=2)), kit.UDP)),
        kit.ethernet(kit.ipv4(kit.udp(2152, 2152, kit.gtpu(inner, 5, extension=True)), kit.UDP)),
        kit.ethernet(kit.ipv4(kit.udp(1, 2, bytes(16)), kit.UDP, ident=4, more=True)),
        kit.ethernet(kit.ipv4(bytes(16), kit.UDP, ident=4, offset=24)),
    ]


def small_seeds() -> list[bytes]:
    """A few captures with those frames in every format and link type."""
    inner, inner6 = sample_packets()
    frames = sample_frames()
    listed = [kit.at(n * 1000, frame) for n, frame in enumerate(frames)]
    links = [(0, kit.null(inner, 2, "<")), (9, kit.ppp(inner6)), (101, inner6), (113, kit.sll(inner))]
    links += [(276, kit.sll2(inner)), (108, kit.null(inner6, 30, ">"))]
    out = [kit.pcap(listed, magic=magic, order=order) for magic in (kit.MICRO, kit.NANO) for order in "<>"]
    out += [kit.pcap([kit.at(0, frame), kit.at(1, frame)], link=link) for link, frame in links]
    for order in "<>":
        section = kit.shb(order) + kit.idb(order, tsresol=9, tsoffset=5) + kit.idb(order, 101, tsresol=0x8A)
        section += kit.nrb(order) + kit.epb(order, 0, kit.T0 * 1000, frames[0]) + kit.epb(order, 1, kit.T0, inner)
        section += kit.spb(order, frames[1]) + kit.obsolete_pb(order, 0, kit.T0, frames[2]) + kit.isb(order, 0)
        out.append(section)
    return [*out, out[-1] + out[-2], gzip.compress(out[0]), zstandard.ZstdCompressor().compress(out[0])]


class Mutator:
    """Random changes, from single bits to spliced files."""

    def __init__(self, seeds: list[bytes], rng: random.Random) -> None:
        self.seeds = seeds
        self.rng = rng

    def mutate(self) -> bytes:
        rng = self.rng
        data = bytearray(rng.choice(self.seeds))
        steps: list[Callable[[bytearray], None]] = [
            self._bit, self._bit, self._byte, self._number, self._number, self._number,
            self._delete, self._repeat, self._splice, self._cut,
        ]  # fmt: skip
        for _ in range(rng.choice([1, 1, 2, 3, 5, 10, 40])):
            if data:
                rng.choice(steps)(data)
        if rng.random() < 0.03:
            packed = bytearray(rng.choice([gzip.compress, zstandard.ZstdCompressor().compress])(bytes(data)))
            if rng.random() < 0.5:
                rng.choice([self._bit, self._byte, self._cut])(packed)
            return bytes(packed)
        return bytes(data)

    def _place(self, data: bytearray) -> int:
        # Headers are where the interesting bytes are: half of the changes fall into the first 200.
        return self.rng.randrange(min(len(data), 200) if self.rng.random() < 0.5 else len(data))

    def _bit(self, data: bytearray) -> None:
        data[self._place(data)] ^= 1 << self.rng.randrange(8)

    def _byte(self, data: bytearray) -> None:
        data[self._place(data)] = self.rng.choice([self.rng.randrange(256), 0, 255, 4, 6, 0x45, 0x60])

    def _number(self, data: bytearray) -> None:
        size = self.rng.choice([1, 2, 4, 8])
        place = self._place(data)
        value = (self.rng.choice(INTERESTING) + self.rng.choice([0, 0, 1, -1])) % (1 << 8 * size)
        data[place : place + size] = value.to_bytes(size, self.rng.choice(["little", "big"]))

    def _delete(self, data: bytearray) -> None:
        place = self._place(data)
        del data[place : place + self.rng.choice([1, 2, 4, 16, 100])]

    def _repeat(self, data: bytearray) -> None:
        place = self._place(data)
        piece = data[place : place + self.rng.choice([1, 4, 8, 40, 400])]
        data[place:place] = piece * self.rng.choice([1, 1, 2, 30])

    def _splice(self, data: bytearray) -> None:
        other = self.rng.choice(self.seeds)
        start = self.rng.randrange(len(other))
        data[self._place(data) :] = other[start : start + 100_000]

    def _cut(self, data: bytearray) -> None:
        del data[self._place(data) :]


def own_loop(seeds: list[bytes], seconds: float, seed: int, limit_s: float, limit_mib: int, keep: Path) -> None:
    mutator = Mutator(seeds, random.Random(seed))
    for data in seeds:  # compiles everything, and shows what memory reading needs
        check(data)
    base_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stop = time.monotonic() + seconds
    runs = frames = 0
    while time.monotonic() < stop:
        data = mutator.mutate()
        keep.write_bytes(data)
        faulthandler.dump_traceback_later(limit_s, exit=True)
        frames += check(data)
        faulthandler.cancel_dump_traceback_later()
        runs += 1
        if runs % 50 == 0:
            gc.collect()  # errors keep their frames, and those their buffers, in cycles until then
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base_kib
        if grown_kib > limit_mib * 1024:
            raise MemoryError(f"{grown_kib // 1024} MiB more than the seeds needed")
    keep.unlink()
    sys.stdout.write(f"{runs} inputs, {frames} frames, {grown_kib // 1024} MiB above the seeds, nothing found\n")


def atheris_loop(seeds: list[bytes], seconds: float) -> None:
    import atheris

    def one(data: bytes) -> None:
        check(data)

    with tempfile.TemporaryDirectory() as corpus:
        for n, data in enumerate(seeds):
            (Path(corpus) / str(n)).write_bytes(data)
            check(data)  # compiles what libFuzzer would take for a hang
        atheris.instrument_all()
        atheris.Setup(["fuzz_reader", f"-max_total_time={seconds:.0f}", "-rss_limit_mb=4096", corpus], one)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seeds", type=Path, help="a folder of captures to start from, beside the built-in ones")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    parser.add_argument("--limit-s", type=float, default=20, help="for one input")
    parser.add_argument("--limit-mib", type=int, default=512, help="for all inputs, above what the seeds need")
    parser.add_argument("--atheris", action="store_true")
    parser.add_argument("--only", type=Path, help="read this input once and stop: to see a failure again")
    options = parser.parse_args()
    if options.only:
        sys.stdout.write(f"{check(options.only.read_bytes())} frames\n")
        return
    seeds = small_seeds()
    if options.seeds:
        found = [p for p in sorted(options.seeds.rglob("*")) if p.is_file() and p.stat().st_size < 50_000]
        seeds += [data for p in found if (data := p.read_bytes())]
    if options.atheris:
        atheris_loop(seeds, options.seconds)
        return
    keep = Path(tempfile.gettempdir()) / f"fuzz_reader_{options.seed}.bin"
    try:
        own_loop(seeds, options.seconds, options.seed, options.limit_s, options.limit_mib, keep)
    except BaseException:
        sys.stderr.write(f"the input is in {keep}\n")
        raise


if __name__ == "__main__":
    main()
