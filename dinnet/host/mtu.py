"""The bytes that a link must carry: payload, INT and MACsec, counted once each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dinnet.errors import DinnetError

#: SecTAG with SCI (IEEE 802.1AE-2018 clause 9.3: 2 + 1 + 1 + 4 + 8) and the integrity check value (16).
MACSEC_BYTES: Final = 32
#: A new UDP header, the shim and the metadata header of INT-MD 2.1 (sections 5.7.2 and 5.8).
_INT_FIXED_BYTES: Final = 8 + 4 + 12


@dataclass(frozen=True, slots=True)
class MtuBudget:
    """What a link has and needs, in bytes of the Ethernet payload."""

    link: str
    available_bytes: int  # MTU of the interface that carries the frames
    payload_bytes: int  # the largest IP packet as its sender made it
    int_bytes: int
    macsec_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.payload_bytes + self.int_bytes + self.macsec_bytes

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.available_bytes)

    @property
    def inner_mtu(self) -> int:
        """MTU of the MACsec interface: packets with their INT, before encryption."""
        return self.available_bytes - self.macsec_bytes

    def check(self) -> None:
        """Raises DinnetError where the link cannot carry it all."""
        if self.missing_bytes:
            raise DinnetError(
                f"link {self.link}: {self.missing_bytes} bytes are missing: payload {self.payload_bytes} + INT "
                f"{self.int_bytes} + MACsec {self.macsec_bytes} = {self.needed_bytes}, and its MTU is "
                f"{self.available_bytes}; raise the MTU or lower the payload's"
            )


def mtu_budget(
    link: str, available_bytes: int, payload_bytes: int = 1500, *, int_bytes: int = 0, macsec: bool = True
) -> MtuBudget:
    """The budget of a link whose carrying interface has an MTU of `available_bytes`."""
    return MtuBudget(link, available_bytes, payload_bytes, int_bytes, MACSEC_BYTES if macsec else 0)


def int_bytes(hops: int, words_per_hop: int) -> int:
    """What INT-MD adds to a packet that `hops` nodes write `words_per_hop` words of 4 bytes into."""
    return _INT_FIXED_BYTES + 4 * hops * words_per_hop if hops else 0
