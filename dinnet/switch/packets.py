"""Packet-ins and packet-outs: the controller's headers between protobuf and plain integers."""

from __future__ import annotations

from finsy.proto import p4r

from dinnet.switch.bytestrings import to_bytes, to_int
from dinnet.switch.codes import Refused, invalid
from dinnet.switch.p4info import ControllerHeader


class PacketCodec:
    """Reads or writes the metadata of one controller header; None: the program has no such header."""

    def __init__(self, header: ControllerHeader | None) -> None:
        self._fields = header.fields if header is not None else ()
        self._places = {field.id: (place, field.width) for place, field in enumerate(self._fields)}

    def parse(self, packet: p4r.PacketOut) -> tuple[int, ...]:
        """The header's values, in its order.

        Raises:
            Refused: A field is missing, unknown, there twice, or does not fit.
        """
        values = [-1] * len(self._fields)
        for item in packet.metadata:
            if item.metadata_id not in self._places:
                raise invalid(f"unknown metadata field id {item.metadata_id}")
            place, width = self._places[item.metadata_id]
            if values[place] != -1:
                raise invalid(f"metadata field {self._fields[place].name} is there twice")
            try:
                values[place] = to_int(item.value, width)
            except Refused as error:
                raise invalid(f"metadata field {self._fields[place].name}: {error}") from error
        if -1 in values:
            raise invalid(f"metadata field {self._fields[values.index(-1)].name} is missing")
        return tuple(values)

    def packet_in(self, payload: bytes, values: tuple[int, ...]) -> p4r.PacketIn:
        """The message that carries a packet to the controller."""
        packet = p4r.PacketIn(payload=payload)
        for field, value in zip(self._fields, values, strict=True):
            packet.metadata.add(metadata_id=field.id, value=to_bytes(value))
        return packet
