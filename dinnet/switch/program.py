"""Everything that is made ready once when a pipeline is set."""

from __future__ import annotations

from finsy.proto import p4i

from dinnet.switch.codes import Code, Refused, invalid
from dinnet.switch.entries import EntryCodec
from dinnet.switch.p4info import Counter, Digest, Meter, parse_p4info
from dinnet.switch.packets import PacketCodec
from dinnet.switch.target import Pipeline


class Program:
    """A pipeline, and the codecs for its parts."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.info = info = pipeline.info
        self.codecs = {id: EntryCodec(table, info) for id, table in info.tables.items()}
        self.packet_in = PacketCodec(info.packet_in)
        self.packet_out = PacketCodec(info.packet_out)

    @classmethod
    def of(cls, message: p4i.P4Info, device_config: bytes = b"", cookie: int | None = None) -> Program:
        """The program that a P4Info describes.

        Raises:
            P4InfoError: It contradicts itself or cannot be served.
        """
        serialized = message.SerializeToString(deterministic=True)
        return cls(Pipeline(parse_p4info(message), serialized, device_config, cookie))

    def table(self, id: int) -> EntryCodec:
        """The codec of a table's entries.

        Raises:
            Refused: There is no such table.
        """
        codec = self.codecs.get(id)
        if codec is None:
            raise self._unknown("table", id)
        return codec

    def counter(self, id: int) -> Counter:
        found = self.info.counters.get(id)
        if found is None:
            raise self._unknown("counter", id)
        return found

    def meter(self, id: int) -> Meter:
        found = self.info.meters.get(id)
        if found is None:
            raise self._unknown("meter", id)
        return found

    def digest(self, id: int) -> Digest:
        found = self.info.digests.get(id)
        if found is None:
            raise self._unknown("digest", id)
        return found

    def _unknown(self, what: str, id: int) -> Refused:
        if id in self.info.unserved:
            return Refused(Code.UNIMPLEMENTED, f"{self.info.unserved[id]} is not served")
        return invalid(f"the program has no {what} {id:#x}")
