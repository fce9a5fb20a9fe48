"""MACsec links as they should be: observe, plan, apply, with static keys that rotate by make-before-break.

The scheme of keys, generations and announcements: docs/macsec.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dinnet.errors import DinnetError
from dinnet.host.macsec_kernel import ALIAS, CIPHERS, Counters, KernelMacsec, Observed, channel_id
from dinnet.host.macsec_keys import KeyName, Secret, derive, key_id, read_master
from dinnet.host.macsec_rotation import Decision, Kernel, announce, decide, fresh, learned, opened, renewed
from dinnet.host.macsec_state import LinkState, forget, load, locked, save
from dinnet.host.mtu import mtu_budget
from dinnet.host.state import Change, Plan, Problem

_NOTHING = Kernel(0, {}, {})


@dataclass(frozen=True, slots=True)
class MacsecLink:
    """One end of an encrypted point-to-point link."""

    name: str  # the same at both ends
    device: str  # the macsec interface to make
    parent: str  # the interface that carries its frames
    peer_mac: str
    key_source: Path  # a file, or a folder with NAME.key
    peer_port: int = 1
    port: int = 1
    cipher: str = "gcm-aes-256"
    replay_window: int = 0  # Linux keeps no list of what came inside a window: with 0 nothing comes twice
    encrypt: bool = True
    offload: str = "off"
    mka: bool = False  # keys by wpa_supplicant's MKA (dinnet.host.mka) instead of from here
    payload_bytes: int = 1400  # the largest packet that must pass
    int_bytes: int = 0

    @property
    def peer(self) -> int:
        return channel_id(self.peer_mac, self.peer_port)

    @property
    def extended(self) -> bool:
        return "xpn" in self.cipher


@dataclass(frozen=True, slots=True)
class Status:
    """What an operator and the controller want to know of an end."""

    link: MacsecLink
    device: bool
    number: int  # of the key in use; -1: none
    next_packet: int
    ready: int  # the peer's keys are here up to this number
    waiting: str  # what the end waits for; "" for nothing
    counters: Counters | None
    announcement: str  # for the other end; "" before the first apply


@dataclass(frozen=True, slots=True)
class _Picture:
    """All that a plan is made from and made of."""

    observed: Observed
    decision: Decision | None
    plan: Plan


class MacsecEnd:
    """This end of a link: the same few calls for the command line and for the controller, which carries announcements.

    Every call holds the link's lock, looks at the kernel, and does only what is missing.
    """

    def __init__(self, link: MacsecLink, folder: Path, namespace: str | None = None) -> None:
        self.link, self.folder, self.namespace = link, folder, namespace

    def status(self) -> Status:
        with self._opened() as (kernel, master):
            state = load(self.folder, self.link.name)
            picture = self._picture(kernel, master, state, None, rotate=False)
            device = picture.observed.device
            there = device.associations if device else _NOTHING
            current = there.tx.get(there.encoding)
            return Status(
                self.link,
                device is not None,
                state.number if state and current else -1,
                current.next_packet if current else 0,
                state.peer.installed if state and state.peer else -1,
                picture.decision.waiting if picture.decision else "",
                device.counters if device else None,
                announce(state).sealed(master) if state and device else "",
            )

    def plan(self, announcement: str | None = None, *, rotate: bool = False) -> Plan:
        """What `apply` would do now."""
        with self._opened() as (kernel, master):
            return self._picture(kernel, master, load(self.folder, self.link.name), announcement, rotate=rotate).plan

    def apply(self, announcement: str | None = None, *, rotate: bool = False) -> Plan:
        """Make it so; what the other end last announced comes first. Returns what was done, and what could not be.

        Raises:
            DinnetError: The kernel refused, the state cannot be kept, or the announcement is not the peer's.
        """
        with self._opened() as (kernel, master):
            before = load(self.folder, self.link.name)
            picture = self._picture(kernel, master, before, announcement, rotate=rotate)
            if picture.decision is None:
                return picture.plan
            if picture.decision.state != before:
                save(self.folder, picture.decision.state)  # before any of it is in use
            self._make(kernel, master, picture)
            return picture.plan

    def announcement(self) -> str:
        """What the other end must be told: sealed, not secret."""
        return self.status().announcement

    def remove(self) -> bool:
        """Take the link away; False where dinnet has made none."""
        with locked(self.folder, self.link.name), KernelMacsec.opened(self.namespace) as kernel:
            device = kernel.observe(self.link.device, self.link.parent, self.link.peer).device
            ours = device is not None and device.alias == ALIAS + self.link.name
            if device is not None and ours:
                kernel.remove(device.index)
            forget(self.folder, self.link.name)
            return ours

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[KernelMacsec, Secret]]:
        if self.link.mka:
            raise DinnetError(f"link {self.link.name}: its keys are MKA's; dinnet.host.mka keeps it")
        with (
            read_master(self.link.key_source, self.link.name) as master,
            locked(self.folder, self.link.name),
            KernelMacsec.opened(self.namespace) as kernel,
        ):
            yield kernel, master

    def _picture(
        self, kernel: KernelMacsec, master: Secret, state: LinkState | None, announcement: str | None, *, rotate: bool
    ) -> _Picture:
        link = self.link
        observed = kernel.observe(link.device, link.parent, link.peer)
        if problems := tuple(_problems(link, observed)):
            return _Picture(observed, None, Plan((), problems))
        assert observed.parent is not None
        device = observed.device
        there = device.associations if device else _NOTHING
        sci = device.sci if device else channel_id(observed.parent.mac, link.port)
        if state is None or state.sci != sci or (state.peer and state.peer.sci != link.peer):
            state = fresh(link.name, sci, there)
        elif device is None:
            state = replace(renewed(state), recent=())
        if announcement is not None:
            state = learned(state, opened(announcement, master, link.name), link.peer)
        decision = decide(
            state,
            there,
            lambda of, way, number: key_id(master, _name(link, of, way, number)),
            rotate=rotate,
            packets=2**64 if link.extended else 2**32,
        )
        return _Picture(observed, decision, Plan(tuple(_changes(link, observed, decision)), _waiting(link, decision)))

    def _make(self, kernel: KernelMacsec, master: Secret, picture: _Picture) -> None:
        link, parent, device = self.link, picture.observed.parent, picture.observed.device
        decision = picture.decision
        assert parent is not None and decision is not None
        mtu = mtu_budget(link.name, parent.mtu).inner_mtu
        for change in picture.plan.changes:
            if change.kind != "macsec":
                continue
            if device is None:
                kernel.make(
                    link.device, parent.index, link.name, cipher=link.cipher, port=link.port, encrypt=link.encrypt,
                    replay_window=link.replay_window, offload=link.offload, mtu=mtu,
                )  # fmt: skip
            else:
                kernel.set_mode(device.index, encrypt=link.encrypt, replay_window=link.replay_window, mtu=mtu)
        index = device.index if device else kernel.index(link.device)
        present = device.associations if device else _NOTHING
        if device is None or not device.has_channel:
            kernel.add_channel(index, link.peer)
        key_bytes = CIPHERS[link.cipher][1]
        own_first = decision.state.sci > link.peer  # the higher SCI's SSCI is 1 (802.1AEbw clause 10.7.13)
        for number in decision.install_rx:
            key = derive(master, _name(link, decision.state, "rx", number), key_bytes, extended=link.extended)
            with key.key:
                kernel.install_rx(index, link.peer, number, key, 1 + own_first, replace=number % 4 in present.rx)
        if decision.use_tx is not None:
            key = derive(master, _name(link, decision.state, "tx", decision.use_tx), key_bytes, extended=link.extended)
            with key.key:
                kernel.use_tx(index, decision.use_tx, key, 2 - own_first, present)


def _name(link: MacsecLink, state: LinkState, way: str, number: int) -> KeyName:
    assert state.peer is not None
    ends = [(state.sci, bytes.fromhex(state.generation)), (state.peer.sci, bytes.fromhex(state.peer.generation))]
    (sender, sender_generation), (receiver, receiver_generation) = ends if way == "tx" else reversed(ends)
    return KeyName(link.name, link.cipher, sender, receiver, sender_generation, receiver_generation, number)


def _problems(link: MacsecLink, observed: Observed) -> Iterator[Problem]:
    if observed.parent is None:
        yield Problem(link.parent, "no such interface", f"link {link.name} needs it")
        return
    if observed.occupied_by:
        yield Problem(link.device, f"there is a {observed.occupied_by} of this name already", "name another device")
    budget = mtu_budget(link.name, observed.parent.mtu, link.payload_bytes, int_bytes=link.int_bytes)
    try:
        budget.check()
    except DinnetError as error:
        what, _, advice = str(error).removeprefix(f"link {link.name}: ").rpartition("; ")
        yield Problem(f"link {link.name}", what, advice)
    device = observed.device
    if device is None:
        return
    if device.alias != ALIAS + link.name:
        yield Problem(link.device, "dinnet did not make this macsec interface", "name another device, or remove it")
        return
    made = {"cipher": device.cipher, "offload": device.offload, "parent": device.parent_index}
    wanted = {"cipher": link.cipher, "offload": link.offload, "parent": observed.parent.index}
    for what, has in made.items():
        if has != wanted[what]:
            advice = "dinnet macsec remove, then apply"
            yield Problem(link.device, f"was made with {what} {has}, not {wanted[what]}", advice)


def _changes(link: MacsecLink, observed: Observed, decision: Decision) -> Iterator[Change]:
    """What is to be done, in words; no key and nothing that leads to one is in them."""
    device, parent = observed.device, observed.parent
    assert parent is not None
    mtu = mtu_budget(link.name, parent.mtu).inner_mtu
    mode = f"encrypt {'on' if link.encrypt else 'off'} replay on window {link.replay_window} mtu {mtu} up"
    if device is None:
        yield Change("add", "macsec", link.device, f"on {link.parent} port {link.port} cipher {link.cipher} {mode}")
    else:
        window = f"on window {device.replay_window}" if device.replay_window is not None else "off"
        state = "up" if device.up else "down"
        before = f"encrypt {'on' if device.encrypt else 'off'} replay {window} mtu {device.mtu} {state}"
        if before != mode:
            yield Change("change", "macsec", link.device, mode, before)
    if device is None or not device.has_channel:
        yield Change("add", "channel", link.device, f"rx sci {link.peer:016x} on")
    for number in decision.install_rx:
        yield Change("add", "association", link.device, f"rx sci {link.peer:016x} sa {number % 4}: key {number}")
    if decision.use_tx is not None:
        yield Change("add", "association", link.device, f"tx sa {decision.use_tx % 4}: key {decision.use_tx}")


def _waiting(link: MacsecLink, decision: Decision) -> tuple[Problem, ...]:
    if not decision.waiting:
        return ()
    return (Problem(f"link {link.name}", decision.waiting, "bring its announcement (dinnet macsec apply --peer)"),)
