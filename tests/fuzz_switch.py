"""Hostile packets against the embedded switch: `python tests/fuzz_switch.py --seconds 600 [--seed N]`. Needs root.

Two switches run with their P4Runtime servers: one is fed by BPF test runs with a clock of our own, the other through
real veths. Each gets mutations of valid packets, frames of `scapy.fuzz` and plain random bytes, and between them
packets of known flows. All the time:

- every output is the model's (`tests/switch_model.py`), dropped packets are counted as what the model says they are;
- the known flows' marks are right, their checksums too, and their records are what their own packets give
  (`dinnet.flows`, the capture reader), whatever else went by;
- the servers answer, and all entries are as they were.

Prints one JSON object with counts; the first difference ends it with exit code 1 and the frame in hexadecimal digits.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import capturekit as kit
import numpy as np
import switch_model
from finsy.proto import p4r
from p4infokit import TABLES
from p4rtkit import INSERT, MODIFY, Client, action, entry, exact, lpm, running, ternary, update

from dinnet.dataplane.conformance.wires import Wires, wires
from dinnet.flows import FlowOptions, read_records
from dinnet.flows.record import RECORD_DTYPE
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.bpfobject import test_run
from dinnet.switch.contract import Drop, Parsed, Port, Sizes
from dinnet.switch.datapath import Datapath
from dinnet.switch.ebpf import EbpfTarget
from dinnet.switch.libbpf import BpfError

IN, OUT, LOOPBACK = 1, 2, 1
ROUND = 200  # hostile frames between two packets of each known flow
ROUNDS = 20  # between two comparisons of records and counters
SIZES = Sizes(microflows=1024, flows=1 << 14)
ROUTES = [(4, 0x0A000000, 8), (6, 0x20010DB8 << 96, 32)]
ROUTE_MACS = (0x02AA00000001, 0x02AA00000002)  # source, destination
SELECTS: list[tuple[int, dict[str, tuple[int, int]], int, int]] = [
    (1, {"proto": (17, 0xFF)}, 3, 1),
    (5, {"proto": (6, 0xFF), "dport": (80, 0xFFFF)}, 2, 2),
    (9, {"dst": (0xFFFF0A000000, 0xFFFFFF000000)}, 4, 3),
    (7, {"vlan": (5, 0xFFF)}, 5, 0),
]
FIELDS = {"ingress_port": 1, "src": 2, "dst": 3, "proto": 4, "sport": 5, "dport": 6, "vlan": 7}
KNOWN = 16
Array = np.ndarray[Any, Any]


class Difference(AssertionError):
    """The switch did something else than it should."""


def short(value: int) -> bytes:
    """As few bytes as hold it."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8))


class Flow:
    """A known flow: its packets, its mark."""

    def __init__(self, index: int) -> None:
        self.version, self.proto = (4, 6)[index & 1], (6, 17)[index >> 1 & 1]
        self.vlan = (0, 9)[index >> 2 & 1]
        self.src, self.dst = (
            ("192.0.2.1", f"10.1.0.{index}") if self.version == 4 else ("fd00::1", f"2001:db8::{index:x}")
        )
        self.sport, self.dport = 5000 + index, 443
        self.mark = (1 + index % 15, index % 4)
        self.sent: list[kit.Frame] = []
        self.key = self._key()

    def frame(self, size: int, number: int) -> bytes:
        if self.proto == 6:
            segment = kit.tcp(self.sport, self.dport, 0x18, bytes(size), seq=number, ack=1, window=number & 0xFFFF)
        else:
            segment = kit.udp(self.sport, self.dport, bytes(size))
        if self.version == 4:
            packet = bytearray(kit.ipv4(segment, self.proto, self.src, self.dst))
            packet[10:12] = bytes(2)
            total = sum(int.from_bytes(packet[at : at + 2]) for at in range(0, 20, 2))
            total = (total & 0xFFFF) + (total >> 16)
            packet[10:12] = (0xFFFF - (total & 0xFFFF) - (total >> 16)).to_bytes(2)
        else:
            packet = bytearray(kit.ipv6(segment, self.proto, self.src, self.dst))
        return kit.ethernet(bytes(packet), tags=[(kit.VLAN, self.vlan)] if self.vlan else [])

    def _key(self) -> tuple[int, int, int, int, int, int]:
        p = switch_model.parse(self.frame(0, 0))
        return p.src, p.dst, p.proto, p.sport, p.dport, p.vlan

    def record(self) -> Array:
        """The last record that the capture reader makes of the flow's own packets."""
        capture = io.BytesIO(kit.pcap(self.sent, magic=kit.NANO))
        chunks = [chunk.copy() for chunk in read_records(capture, options=FlowOptions(emit="all"))]
        return np.concatenate(chunks)[-1:]


class Hostile:
    """Frames that nobody sends in good faith."""

    def __init__(self, chance: random.Random, known: set[tuple[int, ...]]) -> None:
        from scapy.all import IP, TCP, UDP, Dot1Q, Ether, ICMPv6EchoRequest, IPv6, IPv6ExtHdrFragment, fuzz

        self._chance = chance
        self._known = known
        head = {"dst": "02:00:00:00:00:02", "src": "02:00:00:00:00:01"}
        self._scapy = [
            Ether(**head) / fuzz(IP(dst="10.0.0.2")) / fuzz(TCP()),
            Ether(**head) / fuzz(IP(dst="10.0.0.2", version=4)) / fuzz(UDP()),
            Ether(**head) / fuzz(IPv6(dst="2001:db8::2", version=6)) / fuzz(UDP()),
            Ether(**head) / Dot1Q(vlan=5) / fuzz(IPv6(dst="2001:db8::2")) / fuzz(IPv6ExtHdrFragment()) / fuzz(TCP()),
            Ether(**head) / fuzz(Dot1Q()) / fuzz(IP()) / fuzz(TCP()),
            Ether(**head) / fuzz(IPv6()) / fuzz(ICMPv6EchoRequest()),
        ]
        self._ready = [bytes(packet) for packet in self._scapy for _ in range(20)]
        stack = bytes([0x20, 0, 3, 8, 0xD0, 0, 0, 0, 0, 0, 0, 0]) + bytes(12)
        int_md = bytes([0x18, 6, 0, 6]) + stack + kit.tcp(1, 80, payload=b"inner")
        self._seeds = [
            kit.ethernet(kit.ipv4(kit.tcp(1, 80, payload=b"x" * 20, opts=bytes(12)), 6, opts=bytes(8))),
            kit.ethernet(kit.ipv4(kit.udp(1, 80, b"x" * 20), 17)),
            kit.ethernet(kit.ipv4(kit.ah(6) + kit.tcp(1, 2), 51), tags=[(kit.VLAN, 5)]),
            kit.ethernet(kit.ipv4(kit.udp(9, switch_model.INT_PORT, int_md), 17)),
            kit.ethernet(kit.ipv6(kit.udp(9, switch_model.INT_PORT, int_md), 17)),
            kit.ethernet(kit.ipv6(kit.ip6_options(43) + kit.ip6_routing(60, ["fd00::1"]) + kit.ip6_options(17, 2)
                                  + kit.udp(1, 2, b"abc"), 0), tags=[(kit.QINQ, 5), (kit.VLAN, 6)]),
            kit.ethernet(kit.ipv6(b"".join(kit.ip6_options(60) for _ in range(9)) + kit.udp(1, 2), 60)),
            kit.ethernet(kit.ipv6(kit.ip6_fragment(17, 0, True, 1) + kit.udp(1, 2), 44)),
            kit.ethernet(kit.ipv6(kit.ip6_fragment(17, 8, False, 1) + kit.udp(1, 2), 44)),
            kit.ethernet(kit.ipv4(kit.sctp(1, 2), 132)),
            kit.ethernet(kit.ipv4(kit.icmp_echo(b"x"), 1), tags=[(kit.VLAN, 5), (kit.VLAN, 6), (kit.VLAN, 7)]),
            kit.ethernet(bytes(46), 0x0806),
        ]  # fmt: skip

    def frame(self) -> bytes:
        """Never one of a known flow."""
        while True:
            frame = self._any()
            try:
                p = switch_model.parse(frame)
            except switch_model.Malformed:
                return frame
            ends = (p.src, p.sport), (p.dst, p.dport)
            both = [(a[0], b[0], p.proto, a[1], b[1], p.vlan) for a, b in (ends, ends[::-1])]
            if not any(key in self._known for key in both):
                return frame

    def _any(self) -> bytes:
        chance = self._chance
        kind = chance.random()
        if kind < 0.05:
            return chance.randbytes(chance.randint(14, 300))
        if kind < 0.25:
            if kind < 0.055:
                self._ready[chance.randrange(len(self._ready))] = bytes(chance.choice(self._scapy))
            frame = bytearray(chance.choice(self._ready))
        else:
            frame = bytearray(chance.choice(self._seeds))
        for _ in range(chance.choice((0, 1, 1, 2, 3, 8))):
            at = chance.randrange(12, len(frame))
            value = chance.choice((0, 1, 4, 5, 6, 17, 44, 60, 127, 128, 255, chance.randrange(256)))
            frame[at] = value if chance.random() < 0.8 else frame[at] ^ 1 << chance.randrange(8)
        where = chance.random()
        if where < 0.2:
            del frame[chance.randint(14, len(frame)) :]
        elif where < 0.25:
            frame += bytes(chance.randint(1, 40))
        elif where < 0.3:
            at = chance.randrange(12, len(frame))
            frame[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8)))
        return bytes(frame)


class Subject:
    """A switch with its server and client, and the model beside it."""

    def __init__(self, target: EbpfTarget, client: Client, chance: random.Random) -> None:
        self.datapath = target._datapath
        self.client = client
        self.flows = [Flow(index) for index in range(KNOWN)]
        self.model = switch_model.Tables(
            ROUTES, ROUTE_MACS[1].to_bytes(6) + ROUTE_MACS[0].to_bytes(6), SELECTS,
            {flow.key: flow.mark for flow in self.flows}, {mark: 63 - mark for mark in range(64)},
        )  # fmt: skip
        self.hostile = Hostile(chance, {flow.key for flow in self.flows})
        self.chance = chance
        self.frames = self.known = self.refused = self.checks = 0
        client.arbitrate()
        client.set_pipeline()
        client.write(*self._updates())
        self.datapath.clear_flows()
        for name in ("parsed", "drops"):
            self.datapath.table(name).clear()
        self.entries = self._entries()

    def _updates(self) -> Iterator[p4r.Update]:
        macs = [short(mac) for mac in ROUTE_MACS]
        for version, network, bits in ROUTES:
            match = lpm(1, network.to_bytes(4 if version == 4 else 16).lstrip(b"\0"), bits)
            route = action("route", bytes([OUT]), *macs)
            yield update(INSERT, table_entry=entry(f"forward_v{version}", match, action=route))
        default = p4r.TableEntry(table_id=TABLES["forward_l2"], is_default_action=True)
        default.action.CopyFrom(action("to_port", bytes([OUT])))
        yield update(MODIFY, table_entry=default)
        for priority, fields, slice_number, tc in SELECTS:
            match = [ternary(FIELDS[name], short(value), short(mask)) for name, (value, mask) in fields.items()]
            act = action("set_slice", bytes([slice_number]), bytes([tc]))
            yield update(INSERT, table_entry=entry("slice_select", *match, priority=priority, action=act))
        for mark, dscp in self.model.dscp.items():
            match = exact(1, bytes([mark >> 2])), exact(2, bytes([mark & 3]))
            yield update(INSERT, table_entry=entry("mark_to_dscp", *match, action=action("set_dscp", bytes([dscp]))))
        for number, flow in enumerate(self.flows):
            src, dst, proto, sport, dport, vlan = map(short, flow.key)
            match = [exact(at, value) for at, value in enumerate((src, dst, proto, sport, dport, vlan, b"\0"), 1)]
            act = action("set_mark", *(bytes([value]) for value in (*flow.mark, number)))
            yield update(INSERT, table_entry=entry("microflow", *match, action=act))

    def _entries(self) -> list[str]:
        return sorted(map(str, self.client.read(table_entry=p4r.TableEntry())))

    def check_known(self, flow: Flow, frame: bytes, out: bytes | None) -> None:
        """Mark and checksum, from the flow itself."""
        self.known += 1
        if out is None:
            raise Difference(f"a packet of a known flow is gone: {frame.hex()}")
        l3 = 18 if flow.vlan else 14
        tos = out[l3 + 1] if flow.version == 4 else int.from_bytes(out[l3 : l3 + 2]) >> 4 & 0xFF
        if tos >> 2 != 63 - (flow.mark[0] << 2 | flow.mark[1]):
            raise Difference(f"DSCP {tos >> 2} on a packet of mark {flow.mark}: {frame.hex()} -> {out.hex()}")
        if flow.version == 4 and not switch_model.has_right_checksum(out, l3):
            raise Difference(f"a wrong checksum: {frame.hex()} -> {out.hex()}")

    def check(self, *, with_times: bool) -> None:
        """Counters, entries and records; then begin with new records."""
        self.checks += 1
        if self._entries() != self.entries:
            raise Difference("entries have changed")
        for name, kinds, cells in (
            ("parsed", Parsed, self.datapath.parsed()),
            ("drops", Drop, self.datapath.drops()),
        ):
            for kind in kinds:
                wanted = self.model.counted.get(f"{name} {kind.name}", 0)
                if cells[kind].packets != wanted:
                    raise Difference(
                        f"{type(self).__name__}: {name} {kind.name}: {cells[kind].packets} packets, not {wanted}"
                    )
        table = np.concatenate([np.zeros(0, RECORD_DTYPE), *self.datapath.flow_table()])
        for flow in self.flows:
            wanted = flow.record()
            there = (table["sport"] == flow.sport) & (table["dport"] == flow.dport) & (table["vlan"] == flow.vlan)
            for name in ("src_hi", "src_lo", "dst_hi", "dst_lo", "proto"):
                there &= table[name] == wanted[name][0]
            found = table[there]
            if len(found) != 1:
                raise Difference(f"{len(found)} records of flow {flow.key}")
            timed = ("us", "burst", "turn_wait", "checkpoint", "duration")
            for name in RECORD_DTYPE.names or ():
                if name == "end" or (not with_times and any(word in name for word in timed)):
                    continue
                if not np.array_equal(found[name][0], wanted[name][0]):
                    raise Difference(f"flow {flow.key}: {name} is {found[name][0]}, not {wanted[name][0]}")
            flow.sent.clear()
        self.datapath.clear_flows()


class TestRuns(Subject):
    """One frame after the other, with a clock of our own."""

    __test__ = False
    now = 10**18

    def play(self) -> None:
        """A round."""
        for _ in range(ROUND):
            self._pass(self.hostile.frame())
        for flow in self.flows:
            frame = flow.frame(self.chance.choice((0, 10, 500, 1300)), self.known)
            out = self._pass(frame)
            flow.sent.append(kit.Frame(frame, self.now))
            self.check_known(flow, frame, out)

    def _pass(self, frame: bytes) -> bytes | None:
        self.now += self.chance.choice((1000, 300_000, 2_000_000))
        try:
            ran = test_run(self.datapath.program.fd, frame, ifindex=LOOPBACK, time_ns=self.now)
        except BpfError as error:
            if error.code != errno.EINVAL or len(frame) >= 54:
                raise
            self.refused += 1  # the kernel itself, for the IP header is cut
            return None
        self.frames += 1
        out = ran.packet if ran.answer == 7 else None
        wanted = self.model.pass_through(frame)
        if out != wanted:
            shown = (each.hex() if each is not None else "dropped" for each in (out, wanted))
            raise Difference(f"{frame.hex()} -> {next(shown)}, not {next(shown)}")
        return out


class Veths(Subject):
    """Frames on a wire, in groups."""

    wires: Wires

    def play(self) -> None:
        """A round."""
        for start in range(0, ROUND, 50):
            self._pass([self.hostile.frame() for _ in range(min(50, ROUND - start))])
        frames = [flow.frame(self.chance.choice((0, 10, 500, 1300)), self.known) for flow in self.flows]
        for flow, frame, out in zip(self.flows, frames, self._pass(frames), strict=True):
            flow.sent.append(kit.Frame(frame, time.monotonic_ns()))
            self.check_known(flow, frame, out)

    def _pass(self, frames: list[bytes]) -> list[bytes]:
        wanted = []
        for frame in frames:
            if _is_cut_in_its_tag(frame):
                self.refused += 1  # the kernel drops it before anybody sees it
                continue
            self.frames += 1
            self.wires.send(IN, frame)
            out = self.model.pass_through(frame)
            if out is not None:
                wanted.append(out)
        got: list[bytes] = []
        deadline = time.monotonic() + 20
        while len(got) < len(wanted) and time.monotonic() < deadline:
            got += [frame for port, frame in self.wires.received() if port == OUT]
        if got != wanted:
            at = next((n for n, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), len(got))
            shown = [list_[at].hex() if at < len(list_) else "nothing" for list_ in (got, wanted)]
            raise Difference(f"output {at} of {len(wanted)} is {shown[0]}, not {shown[1]}")
        return got


def _is_cut_in_its_tag(frame: bytes) -> bool:
    """Too short for Linux to take the tag out (skb_vlan_untag looks two bytes behind it)."""
    return frame[12:14] in (b"\x81\0", b"\x88\xa8") and len(frame) < 20


@contextmanager
def test_runs(chance: random.Random) -> Iterator[TestRuns]:
    datapath = Datapath.load(SIZES, packet_clock=True)
    datapath.set_port(Port(IN, LOOPBACK))
    datapath.table("egress_port").put(np.array([OUT]), np.array([LOOPBACK]))
    switch = Switch(datapath, None, ExitStack(), adopted=False)
    try:
        target = EbpfTarget(switch)
        # It has connected the controller's port to the interface that the packets come in by.
        with running(target) as server, Client(server.address) as client:
            subject = TestRuns(target, client, chance)
            datapath.table("ingress_port").put(
                np.array([LOOPBACK]), np.array([(IN, 0, 0)], datapath.table("ingress_port").value)
            )
            datapath.table("egress_port").put(np.array([OUT]), np.array([LOOPBACK]))
            yield subject
    finally:
        switch.close()


@contextmanager
def veths(chance: random.Random) -> Iterator[Veths]:
    with wires(2) as ports:
        configs = [PortConfig(number, f"p{number}") for number in (IN, OUT)]
        with Switch.up(configs, namespace=ports.namespace, sizes=SIZES) as switch:
            try:
                target = EbpfTarget(switch)
                with running(target) as server, Client(server.address) as client:
                    subject = Veths(target, client, chance)
                    subject.wires = ports
                    yield subject
            finally:
                switch.down()


test_runs.__test__ = False  # type: ignore[attr-defined]


def fuzz(seconds: float, seed: int) -> dict[str, Any]:
    """Raises: Difference."""
    chance = random.Random(seed)
    with test_runs(chance) as fast, veths(chance) as real:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for subject in (fast, fast, fast, real):
                for _ in range(ROUNDS):
                    subject.play()
                    if time.monotonic() > end:
                        break
                subject.check(with_times=subject is fast)
        return {
            "seed": seed,
            **{
                name: {
                    "hostile": subject.frames - subject.known, "known": subject.known, "refused by the kernel":
                    subject.refused, "checks": subject.checks, **dict(sorted(subject.model.counted.items())),
                }
                for name, subject in (("test runs", fast), ("veths", real))
            },
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    try:
        counted = fuzz(options.seconds, seed)
    except Difference as error:
        sys.stderr.write(f"fuzz_switch: seed {seed}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(counted) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
