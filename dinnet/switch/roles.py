"""What a controller with a role may do.

P4Runtime leaves the form of a role's configuration to agreement. This server knows Stratum's, `stratum.P4RoleConfig`,
which finsy sends; a role without a configuration may do everything, as the specification says.
"""

from __future__ import annotations

from dataclasses import dataclass

from finsy.proto import p4r, stratum
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError

from dinnet.switch.bytestrings import to_int
from dinnet.switch.codes import invalid

_FILTER_WIDTH = 2048  # bits; that a filter's value fits its field is not checked: it then never matches


@dataclass(frozen=True, slots=True)
class Rights:
    """What a role may do; `ids` are those of tables, counters, meters, digests that it may write and reads."""

    ids: frozenset[int] | None = None  # None: all
    sees_packets: bool = True
    sets_pipeline: bool = True
    packet_filter: tuple[int, int] | None = None  # metadata id, value

    def covers(self, id: int) -> bool:
        return self.ids is None or id in self.ids


ALL_RIGHTS = Rights()


def parse_rights(role: p4r.Role) -> Rights:
    """The rights that a role's configuration gives.

    Raises:
        Refused: The configuration is of a kind that is not known here.
    """
    if not role.HasField("config"):
        return ALL_RIGHTS
    config = _unpack(role.config)
    ids = frozenset(config.exclusive_p4_ids) | frozenset(config.shared_p4_ids)
    wanted = config.packet_in_filter
    return Rights(
        # Stratum: a role that names nothing is not restricted.
        ids=ids or None,
        sees_packets=config.receives_packet_ins,
        sets_pipeline=config.can_push_pipeline,
        packet_filter=(wanted.metadata_id, to_int(wanted.value, _FILTER_WIDTH)) if wanted.metadata_id else None,
    )


def _unpack(config: Any) -> stratum.P4RoleConfig:
    unpacked = stratum.P4RoleConfig()
    try:
        if config.Unpack(unpacked):
            return unpacked
    except DecodeError as error:
        raise invalid(f"the role's configuration is damaged: {error}") from error
    raise invalid(f"a role's configuration of type {config.type_url!r} is not known here")
