"""MACsec on a kernel that has it."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from macseckit import ADDRESSES, MACS, Wire, tag
from namespacekit import ip, until
from uml import Guest

from dinnet.errors import DinnetError
from dinnet.host.macsec_kernel import CIPHERS, Counters
from dinnet.host.macsec_state import load, path_of
from dinnet.host.mka import supplicant

second_kernel = Guest(__file__)
ENCRYPTED = 0x2C  # SC, E and C of the TCI: SCI present, encrypted, changed text


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def wire(tmp_path: Path, stack: ExitStack) -> Wire:
    wire = Wire(tmp_path, stack)
    wire.up()
    return wire


def send(wire: Wire, count: int = 1, payload: bytes = b"token") -> None:
    sock = wire.socket("a", 0)
    for _ in range(count):
        sock.sendto(payload, (ADDRESSES["b"], 5000))


@second_kernel
@pytest.mark.parametrize("cipher", sorted(CIPHERS))
def test_frames_on_the_wire_are_encrypted(tmp_path: Path, stack: ExitStack, cipher: str) -> None:
    wire = Wire(tmp_path, stack, cipher=cipher)
    wire.up()
    tap, receiver = wire.tap("b"), wire.socket("b")
    secret = b"the prompt nobody else may read"
    send(wire, 3, secret)
    for number in (1, 2, 3):
        assert receiver.recv(100) == secret
        frame = tap.recv(2000)
        assert tag(frame) == (ENCRYPTED, 0, number, wire.own_sci("a"))
        # 14 Ethernet + 20 IP + 8 UDP + payload, and MACsec's 32, once
        assert len(frame) == 14 + 20 + 8 + len(secret) + 32
        assert secret not in frame
        assert b"\x0a\x01\x00\x02" not in frame  # the IP address 10.1.0.2
    assert (wire.counters("a").tx, wire.counters("b").rx) == (3, 3)


@second_kernel
def test_tampering_and_replay_are_counted_and_dropped(wire: Wire) -> None:
    tap, receiver, injector = wire.tap("b"), wire.socket("b"), wire.tap("a")
    send(wire, 2)
    frames = [tap.recv(2000), tap.recv(2000)]
    assert [receiver.recv(10), receiver.recv(10)] == [b"token"] * 2
    before = wire.counters("b")
    for position in (30, len(frames[1]) - 1):  # in the text, in the integrity check value
        changed = bytearray(frames[1])
        changed[19] = 200  # a packet number that would be fresh
        changed[position] ^= 1
        injector.send(bytes(changed))
    for frame in frames:
        injector.send(frame)
    deadline = time.monotonic() + 10
    while (now := wire.counters("b")).replayed - before.replayed < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (now.invalid - before.invalid, now.replayed - before.replayed, now.rx - before.rx) == (2, 2, 0)
    receiver.settimeout(0.2)
    with pytest.raises(TimeoutError):
        receiver.recv(10)
    assert wire.passes()


@second_kernel
def test_a_clear_frame_does_not_come_in(wire: Wire) -> None:
    receiver, injector = wire.socket("b"), wire.tap("a")
    packet = bytes.fromhex("4500 0021 0000 4000 4011 26ca 0a01 0001 0a01 0002 1388 1388 000d 0000".replace(" ", ""))
    injector.send(bytes.fromhex("02000000000b 02000000000a 0800".replace(" ", "")) + packet + b"clear")
    receiver.settimeout(0.3)
    with pytest.raises(TimeoutError):
        receiver.recv(10)


@second_kernel
def test_apply_again_changes_nothing_and_a_fault_is_mended(wire: Wire) -> None:
    for end in (wire.a, wire.b):
        assert end.plan().is_empty and end.apply().is_empty
    ip("-n", "ma", "link", "set", "ms0", "mtu", "1300")
    ip("-n", "ma", "macsec", "show")
    plan = wire.a.apply()
    assert [(change.action, change.kind, change.where) for change in plan.changes] == [("change", "macsec", "ms0")]
    assert wire.a.plan().is_empty
    assert wire.passes()


@second_kernel
def test_rotation_under_traffic_loses_nothing(wire: Wire) -> None:
    receiver, tap = wire.socket("b"), wire.tap("b")
    got: list[int] = []
    sent = 0
    sender = wire.socket("a", 0)
    ended = threading.Event()

    def receive() -> None:
        receiver.settimeout(1)
        while True:
            try:
                got.append(int.from_bytes(receiver.recv(100)))
            except TimeoutError:
                if ended.is_set():
                    return

    def talk() -> None:
        nonlocal sent
        while not ended.is_set():
            sender.sendto(sent.to_bytes(8), (ADDRESSES["b"], 5000))
            sent += 1
            time.sleep(0.001)

    threads = [threading.Thread(target=receive), threading.Thread(target=talk)]
    for thread in threads:
        thread.start()
    for _ in range(8):  # each association number twice
        wire.a.apply(wire.b.announcement(), rotate=True)
        wire.exchange()
    ended.set()
    for thread in threads:
        thread.join()
    assert got == list(range(sent))
    assert wire.a.status().number == 8
    seen = [tag(tap.recv(2000))[1:3] for _ in range(sent)]
    associations = [an for an, _ in seen]
    changes = [an for before, an in zip([None, *associations], associations, strict=False) if an != before]
    assert changes == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    # Every key starts at packet 1 and counts up by one: nothing twice, nothing left out.
    for (an, number), (next_an, next_number) in itertools.pairwise(seen):
        assert next_number == (number + 1 if an == next_an else 1)


@second_kernel
def test_the_receiver_follows_a_rotation_that_nobody_told_it_of(wire: Wire) -> None:
    for _ in range(2):  # as far as the receiver has keys ahead
        assert not wire.a.apply(rotate=True).problems
    assert wire.passes()
    plan = wire.b.apply()
    assert [change.what.rpartition(" ")[2] for change in plan.changes] == ["3", "4"]


@second_kernel
def test_a_burst_of_rotations_never_runs_ahead_of_the_receiver(wire: Wire) -> None:
    number = wire.a.status().number
    for _ in range(10):
        wire.a.apply(rotate=True)
        time.sleep(0.0003)
    # The receiver has two keys ahead of the one in use: the others wait for its word.
    assert wire.a.status().number == number + 2
    assert wire.passes()
    plan = wire.a.plan(rotate=True)
    assert plan.is_empty and "has not confirmed that it has key 3" in str(plan.problems[0])
    wire.exchange()
    assert not wire.a.apply(rotate=True).problems
    assert wire.passes()


@second_kernel
@pytest.mark.parametrize("end_by", ["half", "exhaustion"])
def test_packet_numbers_near_the_limit(wire: Wire, end_by: str) -> None:
    number = wire.a.status().number

    def advance(packet: int) -> None:
        wire.raw("a", lambda family, index, peer: family.txsa("upd", index, an=number % 4, pn=packet))

    advance(2**31 - 5)
    assert wire.a.plan().is_empty
    if end_by == "half":
        advance(3 * 2**30)  # 75 %
        assert [change.what for change in wire.a.apply().changes] == [f"tx sa {(number + 1) % 4}: key {number + 1}"]
        assert wire.a.status().next_packet == 1
        assert wire.passes()
        return
    advance(2**32 - 2)
    tap = wire.tap("b")
    send(wire, 6)
    seen = [tag(tap.recv(2000))[2] for _ in range(2)]
    assert seen == [2**32 - 2, 2**32 - 1]
    tap.settimeout(0.5)
    with pytest.raises(TimeoutError):  # it never starts again under the same key, and sends nothing in clear
        tap.recv(2000)
    assert not wire.a.apply().is_empty
    assert wire.passes()


@second_kernel
@pytest.mark.parametrize("state", ["kept", "missing", "damaged", "old copy"])
@pytest.mark.parametrize("device", ["gone", "there"])
def test_a_restart_takes_keys_that_were_never_used(wire: Wire, state: str, device: str) -> None:
    used = {}
    old = path_of(wire.a.folder, "a-b").read_bytes()
    for _ in range(3):
        used |= _key_ids(wire)
        wire.a.apply(rotate=True)
        wire.exchange()
        assert wire.passes()
    used |= _key_ids(wire)
    assert len(used) > 3
    tap, injector = wire.tap("b"), wire.tap("a")
    assert wire.passes()
    before_restart = [tap.recv(2000)]

    file = path_of(wire.a.folder, "a-b")
    if device == "gone":
        ip("-n", "ma", "link", "del", "ms0")
    if state == "missing":
        file.unlink()
    elif state == "damaged":
        file.write_bytes(file.read_bytes().replace(b"number", b"nomber"))
    elif state == "old copy":
        file.write_bytes(old)
    wire.exchange()
    if device == "gone":
        ip("-n", "ma", "addr", "add", "10.1.0.1/24", "dev", "ms0")
        ip("-n", "ma", "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:0b", "dev", "ms0", "nud", "permanent")
    assert wire.passes()
    now = _key_ids(wire)
    if (state, device) == ("kept", "there"):
        assert set(now) <= set(used)  # the kernel's own packet number goes on
    else:
        assert not set(now) & set(used)
    assert wire.a.plan().is_empty and wire.b.plan().is_empty

    # What was recorded before is nothing to anyone now.
    before = wire.counters("b")
    injector.send(before_restart[0])
    until(lambda: refused(wire.counters("b")) > refused(before), "the old frame is refused")
    assert wire.counters("b").rx == before.rx


def refused(counters: Counters) -> int:
    return counters.replayed + counters.invalid + counters.unusable


def _key_ids(wire: Wire) -> dict[bytes, int]:
    """Key identifiers of a's associations that are encoding now or were a moment ago."""
    from dinnet.host.macsec_kernel import KernelMacsec

    with KernelMacsec.opened("ma") as kernel:
        device = kernel.observe("ms0", "va", wire.a.link.peer).device
        assert device is not None
        return {association.key_id: an for an, association in device.associations.tx.items()}


@second_kernel
def test_a_restarted_receiver_takes_no_old_frames(wire: Wire) -> None:
    tap, injector = wire.tap("b"), wire.tap("a")
    wire.socket("b")
    send(wire, 5)
    frames = [tap.recv(2000) for _ in range(5)]
    ip("-n", "mb", "link", "del", "ms0")
    wire.exchange()
    ip("-n", "mb", "addr", "add", "10.1.0.2/24", "dev", "ms0")
    before = wire.counters("b")
    for frame in frames:
        injector.send(frame)
    until(lambda: refused(wire.counters("b")) == refused(before) + 5, "the old frames are refused")
    assert wire.counters("b").rx == 0


@second_kernel
def test_a_lost_association_is_never_installed_again(wire: Wire) -> None:
    def drop(family: object, index: int, peer: int) -> None:
        family.rxsa("upd", index, peer, an=0, active=0)  # type: ignore[attr-defined]
        family.rxsa("del", index, peer, an=0)  # type: ignore[attr-defined]

    state = load(wire.b.folder, "a-b")
    assert wire.passes() and state
    wire.raw("b", drop)
    wire.exchange()
    after = load(wire.b.folder, "a-b")
    assert after and after.generation != state.generation
    assert wire.passes()


@second_kernel
def test_full_size_frames_pass_and_one_byte_more_does_not(wire: Wire) -> None:
    # veth 1500 - MACsec 32 = 1468 on ms0; IP 20 and ICMP 8 leave 1440.
    assert _ping(1440) == 0
    assert _ping(1441) != 0
    tap = wire.tap("b")
    assert _ping(1440) == 0
    assert len(tap.recv(2000)) == 14 + 1500


def _ping(size: int) -> int:
    command = f"ip netns exec ma ping -c 1 -W 2 -M do -s {size} 10.1.0.2"
    return subprocess.run(command.split(), capture_output=True, check=False).returncode


@second_kernel
def test_a_link_too_small_is_refused_before_anything_is_made(tmp_path: Path, stack: ExitStack) -> None:
    wire = Wire(tmp_path, stack, payload_bytes=1450, int_bytes=40)
    plan = wire.a.apply()
    assert plan.is_empty and "22 bytes are missing" in str(plan.problems[0])  # 1450 + 40 + 32 - 1500
    assert not wire.a.status().device


@second_kernel
def test_what_dinnet_did_not_make_is_left_alone(tmp_path: Path, stack: ExitStack) -> None:
    wire = Wire(tmp_path, stack)
    ip("-n", "ma", "link", "add", "link", "va", "ms0", "type", "macsec", "port", "1", "cipher", "gcm-aes-256")
    plan = wire.a.apply()
    assert plan.is_empty and "dinnet did not make" in str(plan.problems[0])
    assert not wire.a.remove()
    ip("-n", "ma", "link", "show", "ms0")
    ip("-n", "ma", "link", "del", "ms0")
    ip("-n", "ma", "link", "add", "ms0", "type", "dummy")
    assert "there is a dummy of this name" in str(wire.a.apply().problems[0])


@second_kernel
def test_the_wrong_key_and_open_permissions_are_refused(wire: Wire, tmp_path: Path) -> None:
    wire.key.chmod(0o644)
    with pytest.raises(DinnetError, match="mode 0644"):
        wire.a.apply()
    wire.key.chmod(0o600)
    other = tmp_path / "other.key"
    other.touch(0o600)
    other.write_text("0123456789abcdef" * 4)
    stranger = wire.with_settings("b", key_source=other)
    with pytest.raises(DinnetError, match="not made with this link's key"):
        stranger.apply(wire.a.announcement())
    assert wire.passes()


@second_kernel
def test_offload_that_the_interface_cannot_do(tmp_path: Path, stack: ExitStack) -> None:
    wire = Wire(tmp_path, stack, offload="mac")
    with pytest.raises(DinnetError, match="kernel refused"):
        wire.a.apply()
    subprocess.run(["ip", "-n", "ma", "link", "show", "va"], check=True)
    assert not wire.a.status().device


@second_kernel
def test_no_key_shows_in_what_is_told(wire: Wire) -> None:
    text = wire.key.read_text().strip()
    told = [repr(wire.a.status()), repr(wire.a.plan(rotate=True)), wire.a.announcement()]
    told += [path.read_text() for path in wire.a.folder.glob("*.json")]
    for line in told:
        assert text not in line and text[:16] not in line
    assert json.loads(wire.a.announcement())["link"] == "a-b"


@second_kernel
def test_a_state_that_cannot_be_written_changes_no_key(wire: Wire) -> None:
    before, state = _key_ids(wire), load(wire.a.folder, "a-b")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(DinnetError, match="no key was changed"):
            wire.a.apply(rotate=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _key_ids(wire) == before and load(wire.a.folder, "a-b") == state
    assert wire.passes()


@second_kernel
def test_removed_leaves_nothing(wire: Wire) -> None:
    assert wire.a.remove() and not wire.a.remove()
    assert not path_of(wire.a.folder, "a-b").exists()
    shown = subprocess.run(["ip", "-n", "ma", "macsec", "show"], capture_output=True, text=True, check=True).stdout
    assert shown == ""


@second_kernel
def test_keys_by_mka(tmp_path: Path, stack: ExitStack) -> None:
    if shutil.which("wpa_supplicant", path="/usr/sbin:/sbin:" + os.environ["PATH"]) is None:
        pytest.skip("wpa_supplicant is not installed")
    wire = Wire(tmp_path, stack, cipher="gcm-aes-128", mka=True)
    processes = []
    for end in "ab":
        folder = Path("/run/dinnet-mka", end)
        processes.append(stack.enter_context(supplicant(wire.ends[end].link, f"m{end}", folder)))
        (config,) = folder.iterdir()
        assert config.stat().st_mode & 0o777 == 0o600
        assert wire.key.read_text() not in config.read_text()

    def keyed(namespace: str) -> bool:
        command = ["ip", "-n", namespace, "macsec", "show"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return shown.count("state on, key") >= 2  # one to send with, one to receive with

    for end in "ab":
        until(lambda end=end: keyed(f"m{end}"), "MKA has agreed on keys")  # type: ignore[misc]
    for end, device in zip("ab", ("macsec0", "macsec0"), strict=True):
        ip("-n", f"m{end}", "addr", "add", f"{ADDRESSES[end]}/24", "dev", device)
        ip("-n", f"m{end}", "link", "set", device, "up")
    assert wire.passes()
    assert [process.poll() for process in processes] == [None, None]
    with pytest.raises(DinnetError, match="its keys are MKA's"):
        wire.a.apply()


@second_kernel
def test_the_command_line_brings_a_link_up(tmp_path: Path, stack: ExitStack) -> None:
    wire = Wire(tmp_path, stack)
    for end, other in ("ab", "ba"):
        text = f"state: {end}\nnetns: m{end}\nlinks:\n  - {{name: a-b, device: ms0, parent: v{end}, key: link.key, "
        (tmp_path / f"{end}.yaml").write_text(text + f'peer_mac: "{MACS[other]}"}}\n')

    def dinnet(verb: str, end: str, *more: str) -> str:
        command = [sys.executable, "-m", "dinnet", "macsec", verb, "-c", str(tmp_path / f"{end}.yaml"), *more]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "Traceback" not in ran.stderr and wire.key.read_text() not in ran.stdout + ran.stderr
        return ran.stdout

    applied = {"a": dinnet("apply", "a"), "b": ""}
    for end, other in ("ba", "ab", "ba"):
        said = tmp_path / f"{other}.said"
        said.write_text(dinnet("announce", other))
        applied[end] += dinnet("apply", end, "--peer", str(said))
    wire.up()
    assert wire.passes()
    assert "key 1: done" in applied["a"]  # one ahead of the key in use
    dinnet("apply", "a")
    assert "nothing to change" in dinnet("plan", "a")
    dinnet("rotate", "a")
    (row,) = json.loads(dinnet("status", "a", "-f", "json"))
    assert (row["link"], row["number"]) == ("a-b", 1)
    assert wire.passes()
    assert "removed" in dinnet("remove", "a") and "nothing of dinnet" in dinnet("remove", "a")
