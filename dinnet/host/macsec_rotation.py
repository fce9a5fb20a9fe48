"""Which keys an end of a MACsec link uses next: pure decisions over its state and what the kernel has.

The scheme and why a packet number never comes twice under a key: docs/macsec.md. In short: a key's number modulo 4 is
its association number; a receiver has the sender's next two keys installed ahead and follows by the packets that come;
a sender takes a key into use only when the receiver is known to have it.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dinnet.errors import DinnetError
from dinnet.host.macsec_keys import GENERATION_BYTES, Secret, seal
from dinnet.host.macsec_state import LinkState, PeerState

ASSOCIATIONS: Final = 4
AHEAD: Final = 2
"""Keys of the sender that a receiver has ready beside the one in use and the one before: 4 associations in all."""
FIRST_PACKET: Final = 1
#: Half, so that whoever looks next time still comes before 75 %, even where frames are small and the link is fast.
_DUE_PERCENT: Final = 50
_LAST_NUMBER: Final = 2**63


@dataclass(frozen=True)
class Association:
    """A secure association as the kernel tells of it."""

    key_id: bytes
    next_packet: int
    active: bool = True


@dataclass(frozen=True)
class Kernel:
    """The associations of one macsec link, by association number."""

    encoding: int
    tx: Mapping[int, Association]
    rx: Mapping[int, Association]  # of the peer's channel


@dataclass(frozen=True)
class Announcement:
    """What one end tells the other, through the controller or by hand. Sealed, not secret."""

    link: str
    sci: int
    generation: str
    number: int  # the highest number of its keys that it has taken into use
    heard: str | None  # the generation of the other end that it knows of
    ready: int  # the highest number of the other end's keys that it has installed

    def sealed(self, master: Secret) -> str:
        """One line of JSON."""
        body = json.dumps(self.__dict__, sort_keys=True)
        return json.dumps({**self.__dict__, "seal": seal(master, self.link, body.encode())}, sort_keys=True)


def announce(state: LinkState) -> Announcement:
    peer = state.peer
    return Announcement(
        state.link,
        state.sci,
        state.generation,
        state.number,
        peer.generation if peer else None,
        peer.installed if peer else -1,
    )


def opened(text: str, master: Secret, link: str) -> Announcement:
    """Check and read what `Announcement.sealed` made.

    Raises:
        DinnetError: It is none, of another link, or was not sealed with this link's key.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        given = str(fields.pop("seal"))
        found = Announcement(**fields)
        body = json.dumps(found.__dict__, sort_keys=True)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DinnetError(f"link {link}: this is no announcement of a MACsec end") from None
    if not hmac.compare_digest(given.encode(), seal(master, link, body.encode()).encode()) or found.link != link:
        raise DinnetError(
            f"link {link}: the announcement was not made with this link's key: is it the same at both ends?"
        )
    return found


def fresh(link: str, sci: int, kernel: Kernel | None = None) -> LinkState:
    """A new generation; the next key's association follows the one that is encoding now, if any."""
    return _fitted(LinkState(link, sci, _generation(), -1), kernel or Kernel(0, {}, {}))


def renewed(state: LinkState) -> LinkState:
    """A new generation of an end that is still there: it goes on with what it knows of its peer."""
    peer = state.peer
    if peer is not None:
        peer = replace(peer, installed=peer.base, first=peer.base + 1, confirmed=-1)
    return replace(state, generation=_generation(), peer=peer, retired=())


def _generation() -> str:
    return secrets.token_hex(GENERATION_BYTES)


def _fitted(state: LinkState, kernel: Kernel) -> LinkState:
    """The state with its numbers and recent keys made those of the kernel."""
    found = kernel.tx.get(kernel.encoding)
    if found is None:
        return replace(state, recent=())
    number = state.number + (kernel.encoding - state.number) % ASSOCIATIONS
    return replace(state, number=number, recent=(found.key_id.hex(),))


def learned(state: LinkState, told: Announcement, peer_sci: int) -> LinkState:
    """The state after the other end's announcement.

    Raises:
        DinnetError: It is not the peer's.
    """
    if told.sci != peer_sci:
        raise DinnetError(
            f"link {state.link}: the announcement is of {told.sci:016x}, and the peer is to be {peer_sci:016x}"
        )
    if told.generation in state.retired:
        # Old, or the one that made it look old was. Under a generation of ours that is new, too, either does no harm.
        state = renewed(state)
    confirmed = told.ready if told.heard == state.generation else -1
    peer = state.peer
    if peer is not None and peer.generation == told.generation:
        peer = replace(peer, base=max(peer.base, told.number), confirmed=max(peer.confirmed, confirmed))
        if peer.base > peer.installed:
            peer = replace(peer, installed=peer.base, first=peer.base + 1)
        return replace(state, peer=peer)
    retired = state.retired if peer is None else (*state.retired, peer.generation)
    number = told.number
    peer = PeerState(told.sci, told.generation, base=number, first=number + 1, installed=number, confirmed=confirmed)
    return replace(state, peer=peer, retired=retired)


@dataclass(frozen=True)
class Decision:
    """What to do, and the state that must be on disk before any of it is done."""

    state: LinkState
    install_rx: tuple[int, ...] = ()  # numbers of the peer's keys
    use_tx: int | None = None  # number of our key to install and to switch to
    waiting: str = ""  # why a wanted change cannot be made yet; "" where nothing waits


KeyIds = Callable[[LinkState, str, int], bytes]
"""Key identifier of ("tx" or "rx", number) under a state's generations."""


def decide(state: LinkState, kernel: Kernel, key_ids: KeyIds, *, rotate: bool, packets: int) -> Decision:
    """What is to be done so that both directions have their keys, the receiving ones ahead.

    Args:
        state: As it is on disk, fresh or renewed.
        kernel: The link's associations; empty for a link that is still to be made.
        key_ids: Tells the kernel's associations apart.
        rotate: Take the next key even though the present one is good.
        packets: Packet numbers of an association: 2^32, or 2^64 with an XPN cipher suite.
    """
    if not _is_of(state, kernel):
        # An old copy of the state, or an association taken away by hand: which keys were used is not known.
        state = _fitted(renewed(state), kernel)
    if state.peer is None:
        return Decision(state, waiting="the other end's announcement has not come")
    state = _followed(state, kernel, key_ids)
    if _lost(state, kernel, key_ids):
        # An association that was there is gone, and with it what it had seen: its key must not come back.
        state = renewed(state)
    peer = state.peer
    assert peer is not None
    wanted = tuple(number for number in range(peer.base + 1, peer.base + 1 + AHEAD) if number > peer.installed)
    state = replace(state, peer=replace(peer, installed=max(peer.installed, peer.base + AHEAD)))

    current = _current_tx(state, kernel, key_ids)
    if current is not None and not rotate and not due(kernel.tx[current % ASSOCIATIONS].next_packet, packets):
        return Decision(state, wanted)
    number = state.number + 1
    if number > peer.confirmed:
        return Decision(state, wanted, waiting=f"the other end has not confirmed that it has key {number}")
    if number >= _LAST_NUMBER:
        raise DinnetError(f"link {state.link}: all key numbers are used up; remove the link and apply again")
    recent = (*state.recent[-1:], key_ids(state, "tx", number).hex())
    return Decision(replace(state, number=number, recent=recent), wanted, use_tx=number)


def due(next_packet: int, packets: int) -> bool:
    """Whether an association has used up half of its packet numbers (0 is the kernel's word for all of them)."""
    return next_packet == 0 or next_packet * 100 >= packets * _DUE_PERCENT


def _is_of(state: LinkState, kernel: Kernel) -> bool:
    """Whether the association in use is one that this state knows."""
    found = kernel.tx.get(kernel.encoding)
    return found.key_id.hex() in state.recent if found is not None else not state.recent


def _followed(state: LinkState, kernel: Kernel, key_ids: KeyIds) -> LinkState:
    """The peer's highest key under which a packet has come: the kernel counts none that was not authentic."""
    peer = state.peer
    assert peer is not None
    for number in range(peer.installed, peer.base, -1):
        found = kernel.rx.get(number % ASSOCIATIONS)
        if found and found.next_packet > FIRST_PACKET and found.key_id == key_ids(state, "rx", number):
            return replace(state, peer=replace(peer, base=number))
    return state


def _lost(state: LinkState, kernel: Kernel, key_ids: KeyIds) -> bool:
    peer = state.peer
    assert peer is not None
    for number in range(max(peer.base, peer.first), peer.installed + 1):
        found = kernel.rx.get(number % ASSOCIATIONS)
        if found is None or found.key_id != key_ids(state, "rx", number):
            return True
    return False


def _current_tx(state: LinkState, kernel: Kernel, key_ids: KeyIds) -> int | None:
    """The number of the key in use; the one before the last is good, too: we may have died before the switch."""
    found = kernel.tx.get(kernel.encoding)
    if found is None or not found.active:
        return None
    candidates = [number for number in (state.number, state.number - 1) if number >= 0]
    return next((number for number in candidates if key_ids(state, "tx", number) == found.key_id), None)
