"""Two ends, a model of the kernel between them, and everything that can happen to them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dinnet.errors import DinnetError
from dinnet.host.macsec_keys import KeyName, Secret, key_id
from dinnet.host.macsec_rotation import (
    AHEAD,
    Announcement,
    Association,
    Decision,
    Kernel,
    announce,
    decide,
    due,
    fresh,
    learned,
    opened,
    renewed,
)
from dinnet.host.macsec_state import LinkState

MASTER = Secret(bytearray(range(32)))
SCI = {"a": 0x0200_0000_000A_0001, "b": 0x0200_0000_000B_0001}
OTHER = {"a": "b", "b": "a"}


class Crash(Exception):
    pass


class End:
    """One end: its disk, its kernel, and the keys it ever put there for sending."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk: LinkState | None = None
        self.encoding = 0
        self.tx: dict[int, Association] = {}
        self.rx: dict[int, Association] = {}
        self.device = False
        self.used: list[bytes] = []  # identifiers of keys installed for sending, each at packet 1
        self.received: list[bytes] = []  # and for receiving, each ready to take packet 1

    def key_ids(self, state: LinkState, way: str, number: int) -> bytes:
        assert state.peer is not None
        ends = [(state.sci, bytes.fromhex(state.generation)), (state.peer.sci, bytes.fromhex(state.peer.generation))]
        sender, receiver = ends if way == "tx" else ends[::-1]
        return key_id(MASTER, KeyName("a-b", "gcm-aes-256", sender[0], receiver[0], sender[1], receiver[1], number))

    def apply(self, told: Announcement | None = None, *, rotate: bool = False, crash_at: int = 99) -> Decision:
        kernel = Kernel(self.encoding, dict(self.tx), dict(self.rx)) if self.device else Kernel(0, {}, {})
        state = self.disk or fresh("a-b", SCI[self.name], kernel)
        if not self.device and self.disk:
            state = replace(renewed(state), recent=())
        if told:
            state = learned(state, told, SCI[OTHER[self.name]])
        decision = decide(state, kernel, self.key_ids, rotate=rotate, packets=2**32)
        steps: list[Callable[[], None]] = [lambda: setattr(self, "disk", decision.state)]
        if not self.device:
            steps.append(self._make)
        steps += [lambda n=n: self._install(decision.state, n) for n in decision.install_rx]  # type: ignore[misc]
        if (number := decision.use_tx) is not None:
            steps.append(lambda: self._add(decision.state, number))
            steps.append(lambda: setattr(self, "encoding", number % 4))
            steps.append(lambda: self.tx.__setitem__(number % 4, self.tx[number % 4]))
        for done, step in enumerate(steps):
            if done == crash_at:
                raise Crash
            step()
        return decision

    def _make(self) -> None:
        self.device, self.encoding, self.tx, self.rx = True, 0, {}, {}

    def _install(self, state: LinkState, number: int) -> None:
        self.rx[number % 4] = Association(self.key_ids(state, "rx", number), 1)
        self.received.append(self.rx[number % 4].key_id)

    def _add(self, state: LinkState, number: int) -> None:
        self.tx = {an: sa for an, sa in self.tx.items() if an == self.encoding and an != number % 4}
        self.tx[number % 4] = Association(self.key_ids(state, "tx", number), 1)
        self.used.append(self.tx[number % 4].key_id)

    def send(self, to: End) -> bool:
        """One packet; whether the other end can read it."""
        sa = self.tx.get(self.encoding)
        if not self.device or sa is None:
            return False
        self.tx[self.encoding] = replace(sa, next_packet=sa.next_packet + 1)
        there = to.rx.get(self.encoding)
        if not to.device or there is None or there.key_id != sa.key_id:
            return False
        to.rx[self.encoding] = replace(there, next_packet=max(there.next_packet, sa.next_packet + 1))
        return True


def exchange(a: End, b: End) -> None:
    told: dict[str, Announcement | None] = {"a": None, "b": None}
    for _ in range(4):
        for end, other in ((a, b), (b, a)):
            end.apply(told[other.name])
            assert end.disk
            told[end.name] = announce(end.disk)


def test_three_messages_bring_a_link_up() -> None:
    a, b = End("a"), End("b")
    assert "announcement has not come" in a.apply().waiting
    assert a.disk and not a.tx
    assert "not confirmed" in b.apply(announce(a.disk)).waiting
    assert b.disk
    assert not a.apply(announce(b.disk)).waiting
    assert not b.apply(announce(a.disk)).waiting
    assert a.send(b) and b.send(a)


def test_rotation_needs_no_word_as_long_as_the_receiver_looks() -> None:
    a, b = End("a"), End("b")
    exchange(a, b)
    for _ in range(20):
        assert a.apply(rotate=True).use_tx is not None
        assert a.send(b)
        b.apply()
        assert b.disk
        a.apply(announce(b.disk))


def test_the_sender_waits_for_the_receiver() -> None:
    a, b = End("a"), End("b")
    exchange(a, b)
    used = [a.apply(rotate=True).use_tx for _ in range(10)]
    assert used == [1, 2] + [None] * 8
    assert AHEAD == 2 and a.send(b)


@pytest.mark.parametrize("number", [0, 1, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 1])
def test_due_long_before_three_quarters(number: int) -> None:
    assert due(number, 2**32) == (number == 0 or number >= 2**31)


def test_an_announcement_is_sealed() -> None:
    text = announce(fresh("a-b", SCI["a"])).sealed(MASTER)
    assert opened(text, MASTER, "a-b").sci == SCI["a"]
    stranger = Secret(bytearray(range(1, 33)))
    damaged = text.replace('"number": -1', '"number": 3')
    assert damaged != text
    for bad, master, link in [
        (text, stranger, "a-b"), (text, MASTER, "a-c"), (damaged, MASTER, "a-b"), ("", MASTER, "a-b"),
        ("[]", MASTER, "a-b"), ("{}", MASTER, "a-b"), ("[" * 9000, MASTER, "a-b"),
        ('{"seal": "\u00e9"}', MASTER, "a-b"),
    ]:  # fmt: skip
        with pytest.raises(DinnetError, match="announcement"):
            opened(bad, master, link)


def test_a_generation_that_the_peer_has_left_does_not_come_back() -> None:
    a, b = End("a"), End("b")
    exchange(a, b)
    assert b.disk
    old = announce(b.disk)
    b.device = False
    exchange(a, b)
    used = set(a.received)
    a.apply(old)  # it makes a take a new generation: no key comes back
    exchange(a, b)
    assert len(set(a.received)) == len(a.received) > len(used)
    assert a.send(b) and b.send(a)


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class Life(RuleBasedStateMachine):
    """Whatever happens, in whatever order: no key is installed twice, at either end of a direction."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = {name: End(name) for name in "ab"}
        self.said: list[tuple[str, Announcement]] = []
        self.backups: dict[str, LinkState | None] = {"a": None, "b": None}

    @rule(name=st.sampled_from("ab"), rotate=st.booleans(), crash_at=st.sampled_from([99, 99, 99, 0, 1, 2, 3, 4, 5]))
    def look(self, name: str, rotate: bool, crash_at: int) -> None:
        self._apply(name, None, rotate=rotate, crash_at=crash_at)

    @precondition(lambda self: self.said)
    @rule(data=st.data(), rotate=st.booleans(), crash_at=st.sampled_from([99, 99, 99, 0, 1, 2, 3, 4, 5]))
    def hear(self, data: st.DataObject, rotate: bool, crash_at: int) -> None:
        sender, told = data.draw(st.sampled_from(self.said))  # old ones, too
        self._apply(OTHER[sender], told, rotate=rotate, crash_at=crash_at)

    def _apply(self, name: str, told: Announcement | None, *, rotate: bool, crash_at: int) -> None:
        end = self.ends[name]
        with suppress(Crash):
            end.apply(told, rotate=rotate, crash_at=crash_at)
        if end.disk:
            self.said.append((name, announce(end.disk)))

    @rule(name=st.sampled_from("ab"))
    def packets(self, name: str) -> None:
        self.ends[name].send(self.ends[OTHER[name]])

    @rule(name=st.sampled_from("ab"))
    def reboot(self, name: str) -> None:
        self.ends[name].device = False

    @rule(name=st.sampled_from("ab"))
    def lose_state(self, name: str) -> None:
        self.ends[name].disk = None

    @rule(name=st.sampled_from("ab"))
    def back_up(self, name: str) -> None:
        self.backups[name] = self.ends[name].disk

    @rule(name=st.sampled_from("ab"))
    def restore(self, name: str) -> None:
        self.ends[name].disk = self.backups[name]

    @rule(name=st.sampled_from("ab"), an=st.integers(0, 3))
    def lose_association(self, name: str, an: int) -> None:
        self.ends[name].rx.pop(an, None)

    @rule()
    def settle(self) -> None:
        """And it always comes right again by itself."""
        exchange(self.ends["a"], self.ends["b"])
        assert self.ends["a"].send(self.ends["b"]) and self.ends["b"].send(self.ends["a"])

    @invariant()
    def no_key_twice(self) -> None:
        for end in self.ends.values():
            assert len(set(end.used)) == len(end.used)
            assert len(set(end.received)) == len(end.received)


TestLife = Life.TestCase


def test_generations_are_random() -> None:
    made = {fresh("a-b", 1).generation for _ in range(1000)}
    assert len(made) == 1000 and all(len(bytes.fromhex(one)) == 16 for one in made)
    assert secrets.token_hex(16) not in made
