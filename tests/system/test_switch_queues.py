"""Queue telemetry against what tc counts and what packet sockets see, on real HTB queues."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import switchkit
from intkit import NODE, ones_sum
from namespacekit import ip, until, within
from switchkit import HOSTS, MACS, SWITCH, exchange, programs, wired

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytest.importorskip("finsy", reason="needs finsy, which brings P4Runtime's messages")

from dinnet.switch import queues
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Action, Cell, Collector, Forward, IntEvent, IntNode, Port, Sizes, queue_event_dtype
from dinnet.switch.ebpf import EbpfTarget
from dinnet.switch.queuereports import DROPPED_BY_QUEUE, frame_of, report_of
from dinnet.switch.sliceselect import Match, Watch, Watched
from dinnet.telemetry.metadata import Instruction
from dinnet.telemetry.report import Individual, Report

pytestmark = [
    switchkit.needs_bpf,
    pytest.mark.root,
    pytest.mark.skipif(not Path("/sys/kernel/btf/vmlinux").exists(), reason="this kernel has no type information"),
]
SIZES = Sizes(microflows=1024, flows=1024)
PORTS = [PortConfig(1, "p1", trusted=True), PortConfig(2, "p2")]
RATE = 1_000_000  # bytes per second
FRAME = 1000
MS = 10**6
PLAIN, TOKEN = 0x10010, 0x10017  # classes 1:10 (slice 0, tc 0) and 1:17 (slice 1, tc 3)
DSCP_TOKEN = 7 << 2
SO_TIMESTAMPNS = 35
COLLECTOR = Collector(3, 0x02_00_00_00_00_0A, 0x02_00_00_00_00_0B, 0x0A000001, 0x0A0000FE, 40000, 32766)


def tc(*arguments: str) -> str:
    return subprocess.run(["tc", "-n", SWITCH, *arguments], check=True, capture_output=True, text=True).stdout


def shaped(limit: int = 1000, device: str = "p2") -> None:
    """HTB of 8 Mbit/s in each class; a burst of one packet, so that the n-th waits n * size / rate."""
    tc("qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "10")
    for minor in ("10", "17"):
        size = ("rate", "8mbit", "burst", "1600", "cburst", "1600")
        tc("class", "add", "dev", device, "parent", "1:", "classid", f"1:{minor}", "htb", *size)
        tc("qdisc", "add", "dev", device, "parent", f"1:{minor}", "pfifo", "limit", str(limit))


def counted(minor: str) -> tuple[Cell, Cell, int]:
    """Sent, waiting and dropped, as the kernel tells it of a class of p2; tc itself rounds what it prints."""
    from pyroute2 import IPRoute

    def ask() -> Any:
        with IPRoute() as netlink:
            classes = netlink.get_classes(netlink.link_lookup(ifname="p2")[0])
            return next(each for each in classes if each["handle"] == 0x10000 | int(minor, 16)).get_attr("TCA_STATS2")

    stats = within(SWITCH, ask)
    basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
    return Cell(basic["packets"], basic["bytes"]), Cell(queue["qlen"], queue["backlog"]), queue["drops"]


@pytest.fixture
def switch() -> Iterator[Switch]:
    with wired(), Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as up:
        for number, mac in enumerate(MACS, start=1):
            up.datapath.station(0, mac, Forward(Action.PORT, number))
        yield up
        up.down()


@contextlib.contextmanager
def sender(tos: int = 0) -> Iterator[socket.socket]:
    with within(HOSTS[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        yield sock


def burst(sock: socket.socket, count: int, port: int = 5001) -> None:
    for number in range(count):
        sock.sendto(number.to_bytes(4).ljust(FRAME - 42, b"\0"), ("10.9.0.2", port))


def queue_of(switch: Switch, classid: int) -> queues.Queue:
    (found,) = [queue for queue in queues.read(switch.datapath) if (queue.port, queue.classid) == (2, classid)]
    return found


def sent(switch: Switch, classid: int, count: int) -> None:
    until(lambda: queue_of(switch, classid).sent.packets == count, f"{count} packets to leave")


def stamped(device: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # of all kinds: before the switch
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sock.bind((device, 3))
    sock.settimeout(20)
    return sock


def stamps(sock: socket.socket, count: int) -> dict[int, int]:
    """When the kernel received each packet of a burst, in nanoseconds."""
    found: dict[int, int] = {}
    while len(found) < count:
        frame, ancillary, _, _ = sock.recvmsg(2048, 64)
        if len(frame) == FRAME:
            seconds, ns = np.frombuffer(ancillary[0][2], np.int64)
            found.setdefault(int.from_bytes(frame[42:46]), int(seconds) * 10**9 + int(ns))
    return found


def test_residence_is_what_the_wire_shows(switch: Switch) -> None:
    """Each packet was in its queue from when p1 got it to when eth0 of the other host did."""
    shaped()
    count = 80
    with (
        queues.measuring(switch.datapath, SWITCH),
        within(SWITCH, lambda: stamped("p1")) as came,
        within(HOSTS[1], lambda: stamped("eth0")) as went,
        sender() as sock,
    ):
        burst(sock, count)
        at_p1, at_b = stamps(came, count), stamps(went, count)
        sent(switch, PLAIN, count)
    queue = queue_of(switch, PLAIN)
    seen = np.array([at_b[number] - at_p1[number] for number in range(count)])
    assert queue.timed == count
    assert queue.residence_sum_ns == pytest.approx(seen.sum(), rel=0.05, abs=count * MS)
    assert queue.residence_max_ns == pytest.approx(seen.max(), rel=0.05, abs=2 * MS)
    assert queue.residence_p50_ns == pytest.approx(np.quantile(seen, 0.5), rel=0.3)
    # And what the shaper's rate makes of it: two packets pass at once, the last of the others waits for them all.
    assert queue.residence_max_ns > 0.9 * (count - 3) * FRAME / RATE * 1e9 - (at_p1[count - 1] - at_p1[0])
    assert queue.mark == (0, 0)


def test_backlog_and_drops_are_those_of_tc(switch: Switch) -> None:
    shaped(limit=8)
    with queues.measuring(switch.datapath, SWITCH), sender() as plain, sender(DSCP_TOKEN) as token:
        burst(plain, 30)
        burst(token, 20)
        agreed = 0
        for _ in range(200):  # both read at a moment at which nothing changed between
            before = [counted(minor) for minor in ("10", "17")]
            ours = [queue_of(switch, classid) for classid in (PLAIN, TOKEN)]
            if before == [counted(minor) for minor in ("10", "17")]:
                agreed += any(waiting.packets for _, waiting, _ in before)
                told = [(queue.sent, queue.backlog, queue.drops.packets) for queue in ours]
                assert told == before
            if agreed and not any(waiting.packets for _, waiting, _ in before):
                break
        sent(switch, PLAIN, counted("10")[0].packets)
    for classid, minor, count in ((PLAIN, "10", 30), (TOKEN, "17", 20)):
        queue = queue_of(switch, classid)
        there, waiting, dropped = counted(minor)
        assert (queue.sent, queue.backlog, queue.drops.packets) == (there, waiting, dropped)
        assert waiting == Cell(0, 0)
        assert dropped > 0
        assert there.packets + dropped == count
        assert queue.drops.bytes == dropped * FRAME
        assert sum(queue.drop_reasons.values()) == dropped
        assert all(name.startswith("qdisc") for name in queue.drop_reasons)
        assert queue.backlog_max == Cell(8, 8 * FRAME)
    assert queue_of(switch, TOKEN).mark == (1, 3)


def test_packets_of_a_removed_queue_were_dropped(switch: Switch) -> None:
    shaped()
    with queues.measuring(switch.datapath, SWITCH), sender() as sock:
        burst(sock, 60)
        tc("qdisc", "del", "dev", "p2", "root")
        until(lambda: queue_of(switch, PLAIN).backlog == Cell(0, 0), "an empty queue")
        queue = queue_of(switch, PLAIN)
        assert queue.drops.packets > 0
        assert queue.sent.packets + queue.drops.packets == 60


def test_no_queue_tells_nothing(switch: Switch) -> None:
    with queues.measuring(switch.datapath, SWITCH):
        assert "noqueue" in tc("qdisc", "show", "dev", "p2")
        exchange(20)
        assert queues.read(switch.datapath) == []
        # An empty pfifo is passed by (TCQ_F_CAN_BYPASS): no time in a queue, rather than one of zero.
        tc("qdisc", "add", "dev", "p2", "root", "pfifo")
        exchange(20)
        assert queues.read(switch.datapath) == []
    assert queues.misses(switch.datapath)[queues.Miss.VANISHED] == Cell(0, 0)


def test_other_interfaces_are_not_measured(switch: Switch) -> None:
    """Neither in the switch's namespace, nor one of the same number in another namespace."""
    ip("-n", SWITCH, "link", "add", "q0", "type", "veth", "peer", "name", "q1")
    for name in ("q0", "q1"):
        ip("-n", SWITCH, "link", "set", name, "up")
    shaped(device="q0")
    ports = {port.ifindex for port in switch.datapath.ports()}
    peer = ("peer", "name", "same1", "index", "77")
    ip("-n", HOSTS[0], "link", "add", "same", "index", str(max(ports)), "type", "veth", *peer)
    assert within(HOSTS[0], lambda: socket.if_nametoindex("same")) in ports
    for name in ("same", "same1"):
        ip("-n", HOSTS[0], "link", "set", name, "up")
    subprocess.run(["tc", "-n", HOSTS[0], "qdisc", "add", "dev", "same", "root", "handle", "1:", "htb"], check=True)

    def raw(device: str) -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
            for _ in range(20):
                out.sendto(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + bytes(100), (device, 0))

    with queues.measuring(switch.datapath, SWITCH):
        within(SWITCH, lambda: raw("q0"))
        within(HOSTS[0], lambda: raw("same"))
        assert queues.read(switch.datapath) == []
        shaped()
        exchange(3)  # but those that are the switch's are
        assert queue_of(switch, PLAIN).sent.packets == 3


def test_counts_go_on_with_the_next_server_and_backlogs_begin_anew(switch: Switch) -> None:
    shaped()
    with queues.measuring(switch.datapath, SWITCH):
        exchange(5)
        with sender() as sock:
            burst(sock, 50)
        assert queues.is_measuring(switch.datapath)
        assert queue_of(switch, PLAIN).backlog.packets > 0
    assert not queues.is_measuring(switch.datapath)
    left = queue_of(switch, PLAIN).sent.packets
    until(lambda: counted("10")[1].packets == 0, "an empty queue")
    with queues.measuring(switch.datapath, SWITCH):
        assert queue_of(switch, PLAIN).backlog == Cell(0, 0)
        exchange(5)
        assert queue_of(switch, PLAIN).sent.packets == left + 5
        assert queue_of(switch, PLAIN).backlog == Cell(0, 0)


# --- Reports ----------------------------------------------------------------------------------------------

ASKED = (
    Instruction.NODE_ID | Instruction.PORTS | Instruction.HOP_LATENCY | Instruction.QUEUE
    | Instruction.INGRESS_TIME | Instruction.EGRESS_TIME
)  # fmt: skip


@contextlib.contextmanager
def collecting(switch: Switch) -> Iterator[socket.socket]:
    """Reports leave by port 3, whose peer is read; port 5001 is watched."""
    ip("-n", SWITCH, "link", "add", "p3", "type", "veth", "peer", "name", "c0")
    for name in ("p3", "c0"):
        ip("-n", SWITCH, "link", "set", name, "up")
    pipe = switch.datapath
    pipe.set_port(Port(3, within(SWITCH, lambda: socket.if_nametoindex("p3"))))
    pipe.set_collector(COLLECTOR)
    pipe.set_int_node(2, IntNode(NODE))
    assert pipe.int_source.insert([Watched(Match(dport=(5001, 0xFFFF)), 1, Watch.XD, 0, int(ASKED))]) == [0]

    def listen() -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.bind(("c0", 3))
        sock.settimeout(10)
        return sock

    with within(SWITCH, listen) as sock:
        yield sock


def collected(sock: socket.socket, count: int) -> list[tuple[int, Individual]]:
    """The reports that came, with their numbers; no more than `count`."""
    found = []
    for _ in range(count):
        try:
            frame = sock.recv(2048)
        except TimeoutError:
            missing = sorted(set(range(count)) - {number for number, _ in found})
            pytest.fail(f"{len(found)} reports of {count}; those with the numbers {missing} did not come")
        assert frame[:14].hex() == "02000000000b02000000000a0800"
        assert ones_sum(frame[14:34]) == 0xFFFF
        report = Report.decode(frame[42:])
        assert report.node_id == NODE
        (individual,) = report.reports
        found.append((report.sequence, individual))
    sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        sock.recv(2048)
    return found


class Nobody:
    """Events that a server would pass on."""

    is_behind = False

    def digests(self, digest_id: int, rows: Any) -> None: ...
    def packet_in(self, payload: bytes, metadata: Any) -> None: ...


@pytest.fixture
def target(switch: Switch) -> Iterator[EbpfTarget]:
    """Its thread sends the reports."""
    made = EbpfTarget(switch)
    made.start(Nobody())  # type: ignore[arg-type]
    yield made
    made.stop()


def number_of(report: Individual) -> int:
    """The burst's packets differ by their IP identification only, for a report ends with the UDP header."""
    return int.from_bytes(report.inner[4:6])


@pytest.mark.usefixtures("target")
def test_a_watched_packet_gives_one_report_with_its_time_in_the_queue(switch: Switch) -> None:
    shaped()
    count = 40
    with collecting(switch) as sock, queues.measuring(switch.datapath, SWITCH), sender(DSCP_TOKEN | 1) as out:
        burst(out, count)
        reports = collected(sock, count)
        sent(switch, TOKEN, count)
    assert sorted(sequence for sequence, _ in reports) == list(range(count))
    told = [report.metadata for _, report in reports]
    for _, report in reports:
        hop = report.metadata
        assert report.tracked and not report.dropped
        assert (hop.ingress_port, hop.egress_port, hop.queue_id) == (1, 2, 7)
        assert hop.ingress_ns is not None and hop.egress_ns is not None
        assert hop.hop_latency_ns == hop.egress_ns - hop.ingress_ns
        assert len(report.inner) == 28 and ones_sum(report.inner[:20]) == 0xFFFF
        assert report.inner[1] == DSCP_TOKEN | 1 and report.inner[22:24] == (5001).to_bytes(2)
    latencies = [hop.hop_latency_ns or 0 for hop in told]
    queue = queue_of(switch, TOKEN)
    # A hop is the pipeline and the queue.
    assert queue.residence_sum_ns <= sum(latencies) <= queue.residence_sum_ns + count * MS
    assert sum(hop.queue_occupancy or 0 for hop in told) == queue.found.packets
    assert switch.datapath.int_events()[IntEvent.REPORTED].packets == count


@pytest.mark.usefixtures("target")
def test_what_the_queue_drops_is_reported_as_dropped(switch: Switch) -> None:
    shaped(limit=4)
    count = 20
    with collecting(switch) as sock, queues.measuring(switch.datapath, SWITCH), sender(DSCP_TOKEN) as out:
        burst(out, count)
        reports = collected(sock, count)
    assert sorted(sequence for sequence, _ in reports) == list(range(count))
    dropped = [report for _, report in reports if report.dropped]
    assert len(dropped) == counted("17")[2] > 0
    for report in dropped:
        assert report.drop is not None
        assert (report.drop.queue_id, report.drop.reason) == (7, DROPPED_BY_QUEUE)
        assert report.metadata.hop_latency_ns is None
    assert len({number_of(report) for _, report in reports}) in (1, count)


@pytest.mark.usefixtures("target")
def test_without_a_queue_or_anybody_who_measures_the_pipeline_reports(switch: Switch) -> None:
    with collecting(switch) as sock, sender() as out:
        with queues.measuring(switch.datapath, SWITCH):
            burst(out, 5)  # no queue
            first = collected(sock, 5)
        shaped()
        burst(out, 5)
        sock.settimeout(10)
        second = collected(sock, 5)
    assert [sequence for sequence, _ in first + second] == list(range(10))
    for _, report in first + second:
        assert report.metadata.hop_latency_ns is None
        assert report.metadata.queue_id == 0 and report.metadata.queue_occupancy is None


def test_a_report_repeats_an_ipv6_header_as_it_came(switch: Switch) -> None:
    layout = queue_event_dtype(switch.datapath.table("queue_note").value)
    event = np.zeros(1, layout)[0]
    note = event["note"]
    came = bytes.fromhex("6ab12345 0008 11 40") + bytes(range(32)) + bytes.fromhex("13881389 0008abcd")
    left = bytes.fromhex("61c12345 0008 11 3f") + came[8:]  # other marks, a hop less
    note["head"][: len(left)] = np.frombuffer(left, np.uint8)
    for name, value in (
        ("head_bytes", 48), ("version", 6), ("tos", 0xAB), ("ttl", 0x40), ("bits", int(ASKED)), ("ingress_ns", 5),
        ("node_id", NODE), ("ingress_port", 1), ("egress_port", 2), ("slice", 15), ("tc", 3),
    ):  # fmt: skip
        note[name] = value
    event["egress_ns"], event["occupancy"], event["sequence"] = 5 + 2**33, 2**25, 2**22 + 9
    collector = np.zeros(1, switch.datapath.program.btf.dtype("int_collector"))[0]
    collector["dport"] = 32766
    decoded = Report.decode(frame_of(report_of(event), collector)[42:])
    (report,) = decoded.reports
    assert decoded.sequence == 9
    assert report.inner == came
    assert report.metadata.hop_latency_ns == 0xFFFFFFFE  # more than the field holds
    assert report.metadata.queue_occupancy == 0xFFFFFE
    assert report.metadata.egress_ns == 5 + 2**33
    assert report.metadata.queue_id == 63


# --- The command ------------------------------------------------------------------------------------------


def test_status_top_and_dump_show_queues(tmp_path: Path) -> None:
    import json

    from test_switch_cli import dinnet, server

    config, log = tmp_path / "s.yaml", tmp_path / "log"
    text = (
        f"netns: {SWITCH}\nports: {{1: p1, 2: p2}}\n"
        f"p4runtime: {{listen: 'unix:{tmp_path}/p4rt'}}\ntables: {{microflows: 1024, flows: 1024}}\n"
    )
    config.write_text(text)
    here = ("--netns", SWITCH)

    def rows() -> list[dict[str, Any]]:
        return [json.loads(line) for line in dinnet("dump", "queues", *here).stdout.splitlines()]

    before = programs()

    def made() -> list[str]:
        return [name for number, name in programs().items() if number not in before]

    with wired():
        shaped()
        try:
            with server(config, log) as process:
                assert "enqueued" in made()
                assert "queue telemetry is on" in log.read_text()

                def out() -> None:
                    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, TOKEN)
                        for _ in range(7):
                            raw.sendto(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + bytes(86), ("p2", 0))

                within(SWITCH, out)
                until(lambda: [row["sent"]["packets"] for row in rows()] == [7], "the packets to be counted")
                (row,) = rows()
                assert (row["port"], row["class"], row["slice"], row["tc"]) == (2, "1:17", 1, 3)
                assert row["sent"]["bytes"] == 700 and row["timed"] == 7
                assert 0 < row["residence_us"]["p50"] <= row["residence_us"]["p99"] <= row["residence_us"]["max"]
                assert "1:17" in dinnet("status", *here).stdout
                assert "1:17" in dinnet("top", *here, "--count", "1", "--interval", "0.1").stdout
                assert json.loads(dinnet("status", *here, "--format", "json").stdout)["measuring_queues"] is True
                process.kill()
                process.wait()
            assert "nobody measures them now" in dinnet("status", *here).stdout
            assert rows() == [row]
            config.write_text(text + "queue_telemetry: false\n")
            with server(config, log):
                assert "queue telemetry" not in log.read_text()
                assert rows() == [row]
        finally:
            dinnet("down", *here)
        until(
            lambda: "enqueued" not in [name for id, name in programs().items() if id not in before],
            "the tracing programs to be gone",
        )
