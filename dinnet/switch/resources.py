"""Counters, meters and packet replication between protobuf and plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from finsy.proto import p4r

from dinnet.switch.bytestrings import to_bytes, to_int
from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.p4info import Meter, MeterKind
from dinnet.switch.target import CloneSession, CounterData, MeterConfig, MulticastGroup, Port, Replica

PORT_WIDTH: Final = 32  # bits of a port in a replica; what ports there are is the target's business
MAX_INSTANCE: Final = 0xFFFF  # v1model: bit<16> egress_rid


def parse_counter_data(message: p4r.CounterData) -> CounterData:
    byte_count, packet_count = message.byte_count, message.packet_count
    if byte_count < 0 or packet_count < 0:
        raise invalid("a count is negative")
    return CounterData(byte_count, packet_count)


def fill_counter_data(message: p4r.CounterData, data: CounterData) -> None:
    message.SetInParent()
    if data.byte_count:
        message.byte_count = data.byte_count
    if data.packet_count:
        message.packet_count = data.packet_count


def parse_meter_config(meter: Meter, message: p4r.MeterConfig) -> MeterConfig:
    """The configuration of a meter, by the rules for its kind.

    Raises:
        Refused: A value is negative, the peak rate is below the committed one (RFC 2698, section 3), or there is a
            value that this kind of meter does not have.
    """
    config = MeterConfig(message.cir, message.cburst, message.pir, message.pburst, message.eburst)
    if min(config) < 0:
        raise invalid("a meter's rate or burst is negative")
    if meter.kind is MeterKind.TWO_RATES:
        if config.pir < config.cir:
            raise invalid(f"{meter.name}: the peak rate is below the committed one")
    elif (config.pir, config.pburst) != (config.cir, config.cburst):
        raise invalid(f"{meter.name} has one rate: the peak values must equal the committed ones")
    if config.eburst and meter.kind is not MeterKind.ONE_RATE:
        raise invalid(f"{meter.name} has no excess burst")
    return config


def fill_meter_config(message: p4r.MeterConfig, config: MeterConfig) -> None:
    message.SetInParent()
    message.cir, message.cburst, message.pir, message.pburst, message.eburst = config


def parse_cells(name: str, size: int, message: p4r.Index | None) -> tuple[int, int]:
    """The first cell that an index names, and how many: all of them without one."""
    if message is None:
        return 0, size
    if message.index < 0:
        raise invalid(f"{name}: a negative index")
    if message.index >= size:
        raise Refused(Code.OUT_OF_RANGE, f"{name} has {size} cells: there is none with index {message.index}")
    return message.index, 1


def parse_group(message: p4r.MulticastGroupEntry) -> MulticastGroup:
    return MulticastGroup(message.multicast_group_id, _parse_replicas(message.replicas), message.metadata)


def fill_group(message: p4r.MulticastGroupEntry, group: MulticastGroup) -> None:
    message.multicast_group_id = group.id
    message.metadata = group.metadata
    message.replicas.extend(_replicas(group.replicas))


def parse_session(message: p4r.CloneSessionEntry) -> CloneSession:
    if message.packet_length_bytes < 0:
        raise invalid("the packet length is negative")
    replicas = _parse_replicas(message.replicas)
    return CloneSession(message.session_id, replicas, message.class_of_service, message.packet_length_bytes)


def fill_session(message: p4r.CloneSessionEntry, session: CloneSession) -> None:
    message.session_id = session.id
    message.class_of_service = session.class_of_service
    message.packet_length_bytes = session.packet_length_bytes
    message.replicas.extend(_replicas(session.replicas))


def _parse_replicas(messages: Iterable[p4r.Replica]) -> tuple[Replica, ...]:
    replicas = []
    seen: set[tuple[int, int]] = set()
    for message in messages:
        is_old_form = message.WhichOneof("port_kind") == "egress_port"  # p4runtime-shell still uses it
        port = message.egress_port if is_old_form else to_int(message.port, PORT_WIDTH)
        backups = tuple(Port(to_int(b.port, PORT_WIDTH), b.instance) for b in message.backup_replicas)
        for place in ((port, message.instance), *backups):
            if place in seen:
                raise invalid(f"port {place[0]}, instance {place[1]} is there twice")
            if place[1] > MAX_INSTANCE:
                raise invalid(f"instance {place[1]} is above {MAX_INSTANCE}")
            seen.add((place[0], place[1]))
        if any(backup.port == port for backup in backups):
            raise invalid(f"port {port} is its own backup")
        replicas.append(Replica(port, message.instance, backups, is_old_form))
    return tuple(replicas)


def _replicas(replicas: Iterable[Replica]) -> Iterator[p4r.Replica]:
    for replica in replicas:
        backups = [
            p4r.BackupReplica(port=to_bytes(backup.port), instance=backup.instance) for backup in replica.backups
        ]
        message = p4r.Replica(instance=replica.instance, backup_replicas=backups)
        if replica.is_old_form:
            message.egress_port = replica.port
        else:
            message.port = to_bytes(replica.port)
        yield message
