"""Who may write: client arbitration (specification 1.4, "Client Arbitration and Controller Replication").

For each role the controller with the highest election id that was ever seen is the primary. When it goes, nobody is,
until a controller asks with an id that is at least as high; the others are told that there is none.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from finsy.proto import U128, p4r, rpc_status
from google.protobuf.any_pb2 import Any

from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.roles import ALL_RIGHTS, Rights, parse_rights
from dinnet.switch.sessions import Session

MAX_SESSIONS: Final = 64  # of a role
MAX_ROLES: Final = 64

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Role:
    sessions: list[Session] = field(default_factory=list)
    highest: int | None = None  # election id that a primary ever had; kept when all are gone
    primary: Session | None = None
    coming: Session | None = None  # will be primary when the writes under way are done
    rights: Rights = ALL_RIGHTS
    config: Any | None = None  # as the primary sent it


class Arbiter:
    """Keeps the sessions by role. `writing` is held while a Write is under way."""

    def __init__(self, device_id: int, writing: asyncio.Lock) -> None:
        self.device_id = device_id
        self._writing = writing
        self._roles: dict[str, _Role] = {"": _Role()}

    async def update(self, session: Session, message: p4r.MasterArbitrationUpdate) -> None:
        """Take in what a controller says about itself, and tell everybody concerned.

        Raises:
            Refused: The stream must be closed for it.
        """
        name = message.role.name
        is_first = session.role is None
        if message.device_id != self.device_id:
            code = Code.NOT_FOUND if is_first else Code.FAILED_PRECONDITION
            raise Refused(code, f"there is no device {message.device_id} here, only {self.device_id}")
        if not is_first and session.role != name:
            raise Refused(Code.FAILED_PRECONDITION, "a stream cannot change its role; close it and open a new one")
        if message.role.id and not name:
            raise invalid("roles have names since P4Runtime 1.4, not ids")
        rights = parse_rights(message.role)
        election_id = U128.decode(message.election_id) if message.HasField("election_id") else None
        role = self._roles.get(name) or self._new_role()
        others = [other for other in role.sessions if other is not session]
        if election_id is not None and any(other.election_id == election_id for other in others):
            raise invalid(f"election id {election_id} is already used by another controller of this role")
        if is_first:
            if len(role.sessions) >= MAX_SESSIONS:
                raise Refused(Code.RESOURCE_EXHAUSTED, f"{MAX_SESSIONS} controllers of this role are connected")
            self._roles[name] = role
            role.sessions.append(session)
            session.role = name
        session.election_id = election_id
        if election_id is not None and (role.highest is None or election_id >= role.highest):
            role.rights, role.config = rights, message.role.config if message.role.HasField("config") else None
            await self._promote(name, role, session, election_id)
        elif session in (role.primary, role.coming):
            role.primary = role.coming = None
            self._tell(name, role, role.sessions)
        else:
            self._tell(name, role, [session])

    def _new_role(self) -> _Role:
        """A role; where there are too many, in the place of the first that nobody has any more."""
        if len(self._roles) >= MAX_ROLES:
            unused = next((name for name, role in self._roles.items() if name and not role.sessions), None)
            if unused is None:
                raise Refused(Code.RESOURCE_EXHAUSTED, f"{MAX_ROLES} roles are connected")
            del self._roles[unused]
        return _Role()

    async def _promote(self, name: str, role: _Role, session: Session, election_id: int) -> None:
        """Hand over to `session`, once what the last primary began to write is done."""
        role.primary, role.coming, role.highest = None, session, election_id
        self._tell(name, role, [other for other in role.sessions if other is not session])
        async with self._writing:
            if role.coming is not session:
                return  # somebody else was faster, or it left
            role.primary, role.coming = session, None
        _log.info("election id %d is primary of role %r", election_id, name)
        self._tell(name, role, [session])

    def leave(self, session: Session) -> None:
        """Forget a session whose stream has ended; the others of its role are told if it was the primary."""
        session.end()
        role = self._roles.get(session.role) if session.role is not None else None
        if role is None or session.role is None or session not in role.sessions:
            return
        role.sessions.remove(session)
        if session in (role.primary, role.coming):
            role.primary = role.coming = None
            self._tell(session.role, role, role.sessions)

    def _tell(self, name: str, role: _Role, sessions: list[Session]) -> None:
        leader = role.primary or role.coming
        for session in sessions:
            update = p4r.MasterArbitrationUpdate(device_id=self.device_id)
            if name:
                update.role.name = name
                if role.config is not None:
                    update.role.config.CopyFrom(role.config)
            if role.highest is not None:
                update.election_id.CopyFrom(U128.encode(role.highest))
            update.status.CopyFrom(_standing(session, leader))
            session.send(p4r.StreamMessageResponse(arbitration=update))

    # What the other calls ask.

    def check_primary(self, device_id: int, role_name: str, election_id: p4r.Uint128 | None) -> Rights:
        """What the sender of a request that changes something may do.

        Raises:
            Refused: NOT_FOUND for a device or role that is not here, PERMISSION_DENIED for who is not primary.
        """
        self.check_device(device_id)
        role = self._roles.get(role_name)
        if role is None:
            raise Refused(Code.NOT_FOUND, f"no controller has the role {role_name!r}")
        primary = role.primary
        if primary is None or election_id is None or primary.election_id != U128.decode(election_id):
            raise Refused(Code.PERMISSION_DENIED, "not the primary controller")
        return role.rights

    def check_device(self, device_id: int) -> None:
        if device_id != self.device_id:
            raise Refused(Code.NOT_FOUND, f"there is no device {device_id} here, only {self.device_id}")

    def rights(self, role_name: str) -> Rights:
        """What a role may read."""
        role = self._roles.get(role_name)
        return role.rights if role is not None else ALL_RIGHTS

    def rights_of(self, session: Session) -> Rights | None:
        """What a session may do; None: it is not primary."""
        role = self._roles.get(session.role) if session.role is not None else None
        return role.rights if role is not None and role.primary is session else None

    def primaries(self) -> list[tuple[Session, Rights]]:
        """The primaries of all roles."""
        return [(role.primary, role.rights) for role in self._roles.values() if role.primary is not None]


def _standing(session: Session, leader: Session | None) -> rpc_status.Status:
    if leader is None:
        return rpc_status.Status(code=Code.NOT_FOUND, message="there is no primary controller")
    if session is leader:
        return rpc_status.Status(code=Code.OK, message="this is the primary controller")
    return rpc_status.Status(code=Code.ALREADY_EXISTS, message="another controller is primary")
