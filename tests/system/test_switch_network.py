"""The embedded switch between namespaces: real traffic, its owner's death, its removal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import switchkit
from namespacekit import until, within
from switchkit import HOSTS, MACS, SWITCH, exchange, wired

from dinnet.errors import DinnetError
from dinnet.switch import hooks
from dinnet.switch.attach import PortConfig, Switch, attached, take_down
from dinnet.switch.contract import Action, Forward, Sizes
from dinnet.switch.libbpf import library

pytest.importorskip("pyroute2", reason="needs pyroute2, which attaches the switch")
pytestmark = [switchkit.needs_bpf, pytest.mark.root]

SIZES = Sizes(microflows=1024, flows=1024)
PORTS = [PortConfig(1, "p1"), PortConfig(2, "p2")]


@pytest.fixture
def wires() -> Iterator[None]:
    with wired():
        yield


def tc(*arguments: str) -> str:
    return subprocess.run(["tc", "-n", SWITCH, *arguments], check=True, capture_output=True, text=True).stdout


def has_program(number: int) -> bool:
    fd = library().bpf_prog_get_fd_by_id(number)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def connect(switch: Switch) -> None:
    for number, mac in enumerate(MACS, start=1):
        switch.datapath.station(0, mac, Forward(Action.PORT, number))


@pytest.fixture
def without_tcx(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a kernel before 6.6."""
    monkeypatch.setattr(hooks, "attach_tcx", lambda *_: False)


@pytest.fixture(params=["as the kernel can", "without tcx"])
def each_hook(request: pytest.FixtureRequest) -> None:
    if request.param == "without tcx":
        request.getfixturevalue("without_tcx")


@pytest.mark.usefixtures("wires", "each_hook")
def test_traffic_passes_and_nothing_is_left_behind() -> None:
    before = tc("qdisc", "show")
    with Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        number = switch.datapath.program.id
        connect(switch)
        exchange(10)
        assert switch.datapath.parsed()[1].packets == 20
        (record,) = [row for rows in switch.datapath.flow_table() for row in rows]
        assert (record["fwd_packets"], record["rev_packets"], record["fwd_bytes"]) == (10, 10, 320)
        switch.down()
    assert tc("qdisc", "show") == before
    assert attached(SWITCH) == []
    until(lambda: not has_program(number), "the program's end")


@pytest.mark.usefixtures("wires", "each_hook")
def test_a_switch_is_taken_over_where_it_is() -> None:
    with Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        connect(switch)
        before = attached(SWITCH)
    assert [each.interface for each in before] == ["p1", "p2"]
    exchange()
    with Switch.up(PORTS, namespace=SWITCH) as again:
        assert again.adopted
        assert attached(SWITCH) == before
        again.down()
    assert attached(SWITCH) == []


@pytest.mark.usefixtures("wires")
def test_somebody_elses_program_at_tcx_stays() -> None:
    passing = bytes.fromhex("b7000000ffffffff9500000000000000")  # r0 = TC_ACT_UNSPEC; return
    theirs = library().bpf_prog_load(3, b"ingress", b"GPL", passing, 2, None)  # BPF_PROG_TYPE_SCHED_CLS
    index = within(SWITCH, lambda: socket.if_nametoindex("p1"))
    if not within(SWITCH, lambda: hooks.attach_tcx(index, theirs)):
        pytest.skip("this kernel has no tcx")
    with Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        assert len(attached(SWITCH)) == 2  # theirs is none, though its name is the same
        connect(switch)
        exchange(3)
        switch.down()
    assert attached(SWITCH) == []
    assert within(SWITCH, lambda: library().bpf_prog_detach2(theirs, index, 46)) == 0  # it was there still
    os.close(theirs)


@pytest.mark.usefixtures("wires", "without_tcx")
def test_somebody_elses_clsact_and_filters_stay() -> None:
    tc("qdisc", "add", "dev", "p1", "clsact")
    tc("filter", "add", "dev", "p1", "egress", "protocol", "all", "pref", "5", "u32", "match", "u32", "0", "0")
    before = tc("qdisc", "show"), tc("filter", "show", "dev", "p1", "egress")
    with Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        # And one that came in the meantime.
        tc("filter", "add", "dev", "p2", "egress", "protocol", "all", "pref", "5", "u32", "match", "u32", "0", "0")
        switch.down()
    assert tc("filter", "show", "dev", "p1", "ingress") == ""
    assert tc("filter", "show", "dev", "p1", "egress") == before[1]
    assert "clsact" in tc("qdisc", "show", "dev", "p1")
    assert "clsact" in tc("qdisc", "show", "dev", "p2")


@pytest.mark.usefixtures("wires")
def test_mark_picks_the_class_of_the_egress_queue() -> None:
    tc("qdisc", "add", "dev", "p2", "root", "handle", "1:", "htb", "default", "99")
    for mark in (0, 7):
        tc("class", "add", "dev", "p2", "parent", "1:", "classid", f"1:{0x10 + mark:x}", "htb", "rate", "1gbit")

    def sent() -> dict[str, int]:
        shown = tc("-s", "class", "show", "dev", "p2")
        return {name: int(packets) for name, packets in re.findall(r"class htb (\S+) .*\n Sent \d+ bytes (\d+)", shown)}

    with Switch.up([PortConfig(1, "p1", trusted=True), PORTS[1]], namespace=SWITCH, sizes=SIZES) as switch:
        connect(switch)
        exchange(3)
        assert sent() == {"1:10": 3, "1:17": 0}
        # The sender's DSCP 7 is slice 1, traffic class 3; ECN is kept beside it.
        sock = within(HOSTS[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 7 << 2 | 2)
            for _ in range(5):
                sock.sendto(b"x", ("10.9.0.2", 5001))
        until(lambda: sent() == {"1:10": 3, "1:17": 5}, "packets in the marks' class")
        switch.down()


@pytest.mark.usefixtures("wires")
def test_vlan_tags_stay_on_the_frame() -> None:
    """The kernel takes the outer tag out of the frame before the program sees it."""

    def packet_socket(namespace: str) -> socket.socket:
        def make() -> socket.socket:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            sock.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA: the tag that the kernel takes out
            sock.bind(("eth0", 3))
            sock.settimeout(20)
            return sock

        return within(namespace, make)

    head = MACS[1].to_bytes(6) + MACS[0].to_bytes(6)
    udp = bytes.fromhex("4500001d00000000401100000a0900010a090002") + bytes.fromhex("1388138900090000") + b"x"
    with Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        packets: list[bytes] = []
        records = switch.datapath.events(lambda port, record: None, lambda event: packets.append(event.data))
        switch.datapath.station(100, MACS[1], Forward(Action.PORT, 2))
        switch.datapath.station(101, MACS[1], Forward(Action.CONTROLLER))
        with packet_socket(HOSTS[0]) as a, packet_socket(HOSTS[1]) as b:
            for tags in ("81000064", "88a8006481000007"):
                frame = head + bytes.fromhex(tags) + b"\x08\x00" + udp
                a.send(frame)
                data, auxiliary, *_ = b.recvmsg(2048, 256)
                status = auxiliary[0][2]
                tci, tpid = (int.from_bytes(status[at : at + 2], sys.byteorder) for at in (16, 18))
                assert data[:12] + tpid.to_bytes(2) + tci.to_bytes(2) + data[12:] == frame
            flows = [row for rows in switch.datapath.flow_table() for row in rows]
            assert sorted((int(row["vlan"]), int(row["inner_vlan"])) for row in flows) == [(100, 0), (100, 7)]
            frame = head + bytes.fromhex("81006065") + b"\x08\x00" + udp
            a.send(frame)
            until(lambda: bool(records.poll() or packets), "the packet for the controller")
            assert packets == [frame]
        records.close()
        switch.down()


@pytest.mark.usefixtures("wires")
def test_second_instance_is_refused() -> None:
    with Switch.up(PORTS, namespace=SWITCH, sizes=SIZES) as switch:
        with pytest.raises(DinnetError, match="p1: another dinnet switch is running on it"):
            Switch.up(PORTS, namespace=SWITCH, sizes=SIZES)
        with pytest.raises(DinnetError, match="another dinnet switch is running on it"):
            take_down(SWITCH)
        assert len(attached(SWITCH)) == 2
        switch.down()


@pytest.mark.usefixtures("wires")
def test_interface_that_is_not_there_changes_nothing() -> None:
    with pytest.raises(DinnetError, match="there is no interface nope"):
        Switch.up([PORTS[0], PortConfig(2, "nope")], namespace=SWITCH, sizes=SIZES)
    assert attached(SWITCH) == []
    assert "clsact" not in tc("qdisc", "show")


OWNER = f"""
import sys, time
from dinnet.switch.attach import PortConfig, Switch
from dinnet.switch.contract import Action, Forward, Sizes
switch = Switch.up([PortConfig(1, "p1"), PortConfig(2, "p2")], namespace="{SWITCH}",
                   sizes=Sizes(microflows=1024, flows=1024))
for number, mac in enumerate({MACS}, start=1):
    switch.datapath.station(0, mac, Forward(Action.PORT, number))
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("wires")
def test_owner_killed_under_traffic_loses_no_packet_and_the_switch_is_adopted() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    errors: list[BaseException] = []
    going, done = threading.Event(), threading.Event()

    def traffic() -> None:
        try:
            while not done.is_set():
                exchange(20)
                going.set()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)
            going.set()

    worker = threading.Thread(target=traffic)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        worker.start()
        assert going.wait(60)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        (number,) = {each.program_id for each in attached(SWITCH)}
        with Switch.up(PORTS, namespace=SWITCH) as switch:
            assert switch.adopted
            assert switch.datapath.program.id == number
            before = switch.datapath.parsed()[1].packets
            until(lambda: switch.datapath.parsed()[1].packets > before + 40, "more traffic")
            done.set()
            worker.join()
            assert not errors
            assert all(cell.packets == 0 for cell in switch.datapath.drops().values())
            switch.down()
        assert attached(SWITCH) == []
    finally:
        done.set()
        with contextlib.suppress(ProcessLookupError):
            owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
        if worker.ident is not None:
            worker.join()
