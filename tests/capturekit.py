"""Small builders of capture files, frames and packet rows for tests, written from the standards with `struct` alone.

Nothing here uses the code under test, so that an error there cannot hide behind the same error here.
"""

from __future__ import annotations

import ipaddress
import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

T0 = 1_700_000_000_000_000
"""A round time in microseconds since 1970 (November 2023) at which most tests start."""

# --- pcap -------------------------------------------------------------------------------------------------

MICRO, NANO, MODIFIED = 0xA1B2C3D4, 0xA1B23C4D, 0xA1B2CD34


@dataclass(frozen=True)
class Frame:
    """One captured frame: bytes, time in nanoseconds since 1970, and the length on the wire (default: all captured)."""

    data: bytes
    ns: int
    wire: int | None = None

    @property
    def original(self) -> int:
        return len(self.data) if self.wire is None else self.wire


def at(us: int, data: bytes, wire: int | None = None) -> Frame:
    """A frame at T0 + `us` microseconds."""
    return Frame(data, (T0 + us) * 1000, wire)


def pcap_header(link: int = 1, magic: int = MICRO, order: str = "<", snaplen: int = 262_144) -> bytes:
    return struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link)


def pcap_record(frame: Frame, magic: int = MICRO, order: str = "<") -> bytes:
    seconds, ns = divmod(frame.ns, 1_000_000_000)
    part = ns if magic == NANO else ns // 1000
    head = struct.pack(order + "IIII", seconds, part, len(frame.data), frame.original)
    if magic == MODIFIED:  # interface index, protocol, packet type, pad: Kuznetzov's patched libpcap
        head += struct.pack(order + "IHBB", 2, 0x0800, 0, 0)
    return head + frame.data


def pcap(frames: Iterable[Frame], link: int = 1, magic: int = MICRO, order: str = "<", snaplen: int = 262_144) -> bytes:
    return pcap_header(link, magic, order, snaplen) + b"".join(pcap_record(f, magic, order) for f in frames)


def snoop(frames: Iterable[Frame]) -> bytes:
    """RFC 1761, Ethernet."""
    out = b"snoop\0\0\0" + struct.pack(">II", 2, 4)
    for frame in frames:
        pad = -len(frame.data) % 4
        seconds, ns = divmod(frame.ns, 1_000_000_000)
        size = 24 + len(frame.data) + pad
        out += struct.pack(">IIIIII", frame.original, len(frame.data), size, 0, seconds, ns // 1000)
        out += frame.data + bytes(pad)
    return out


# --- pcapng (draft-ietf-opsawg-pcapng) --------------------------------------------------------------------


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def options(order: str, pairs: Sequence[tuple[int, bytes]]) -> bytes:
    if not pairs:
        return b""
    return b"".join(struct.pack(order + "HH", c, len(v)) + _padded(v) for c, v in pairs) + bytes(4)


def block(order: str, kind: int, body: bytes) -> bytes:
    size = 12 + len(_padded(body))
    return struct.pack(order + "II", kind, size) + _padded(body) + struct.pack(order + "I", size)


def shb(order: str = "<", length: int = -1, extra: Sequence[tuple[int, bytes]] = ()) -> bytes:
    body = struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, length)
    return block(order, 0x0A0D0D0A, body + options(order, extra))


def idb(
    order: str = "<", link: int = 1, snaplen: int = 0, tsresol: int | None = None, tsoffset: int | None = None
) -> bytes:
    """Interface; `tsresol` is the option's raw byte (bit 7: power of two), `tsoffset` in seconds."""
    extra = [(2, b"eth0")]
    if tsresol is not None:
        extra.append((9, bytes([tsresol])))
    if tsoffset is not None:
        extra.append((14, struct.pack(order + "q", tsoffset)))
    return block(order, 1, struct.pack(order + "HHI", link, 0, snaplen) + options(order, extra))


def epb(
    order: str,
    interface: int,
    ticks: int,
    data: bytes,
    *,
    wire: int | None = None,
    extra: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    wire = len(data) if wire is None else wire
    head = struct.pack(order + "IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire)
    return block(order, 6, head + _padded(data) + options(order, extra))


def spb(order: str, data: bytes, wire: int | None = None) -> bytes:
    return block(order, 3, struct.pack(order + "I", len(data) if wire is None else wire) + data)


def obsolete_pb(order: str, interface: int, ticks: int, data: bytes, wire: int | None = None) -> bytes:
    wire = len(data) if wire is None else wire
    head = struct.pack(order + "HHIIII", interface, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire)
    return block(order, 2, head + data)


def nrb(order: str) -> bytes:
    entry = struct.pack(order + "HH", 1, 4 + 5) + _padded(bytes([10, 0, 0, 1]) + b"host\0")
    return block(order, 4, entry + bytes(4))


def isb(order: str, interface: int) -> bytes:
    return block(order, 5, struct.pack(order + "III", interface, 0, 0) + options(order, [(4, bytes(8))]))


# --- below IP ---------------------------------------------------------------------------------------------

IPV4, IPV6, VLAN, QINQ, OLD_QINQ, MPLS, MPLS_MULTICAST = 0x0800, 0x86DD, 0x8100, 0x88A8, 0x9100, 0x8847, 0x8848
PPPOE_SESSION = 0x8864
TEB = 0x6558


def ethertype_of(packet: bytes) -> int:
    return IPV4 if packet[0] >> 4 == 4 else IPV6


def ethernet(payload: bytes, ethertype: int | None = None, tags: Sequence[tuple[int, int]] = ()) -> bytes:
    """An Ethernet II frame; `tags` are (TPID, tag control information), outermost first."""
    out = bytes.fromhex("020000000002020000000001")
    for tpid, tci in tags:
        out += struct.pack(">HH", tpid, tci)
    return out + struct.pack(">H", ethertype_of(payload) if ethertype is None else ethertype) + payload


def mpls(payload: bytes, labels: Sequence[int]) -> bytes:
    last = len(labels) - 1
    return b"".join(struct.pack(">I", label << 12 | (i == last) << 8 | 64) for i, label in enumerate(labels)) + payload


def pppoe(payload: bytes) -> bytes:
    ppp_protocol = 0x21 if payload[0] >> 4 == 4 else 0x57
    return struct.pack(">BBHHH", 0x11, 0, 7, 2 + len(payload), ppp_protocol) + payload


def ppp(payload: bytes, framing: bool = True, compressed: bool = False) -> bytes:
    """RFC 1662 without flags and checksum; `compressed` leaves out the protocol's leading zero octet."""
    number = 0x21 if payload[0] >> 4 == 4 else 0x57
    protocol = bytes([number]) if compressed else struct.pack(">H", number)
    return (b"\xff\x03" if framing else b"") + protocol + payload


def sll(payload: bytes, protocol: int | None = None) -> bytes:
    protocol = ethertype_of(payload) if protocol is None else protocol
    return struct.pack(">HHH8sH", 0, 1, 6, bytes(8), protocol) + payload


def sll2(payload: bytes, protocol: int | None = None) -> bytes:
    protocol = ethertype_of(payload) if protocol is None else protocol
    return struct.pack(">HHIHBB8s", protocol, 0, 3, 1, 0, 6, bytes(8)) + payload


def null(payload: bytes, family: int, order: str) -> bytes:
    return struct.pack(order + "I", family) + payload


# --- IP and above -----------------------------------------------------------------------------------------

TCP, UDP, ICMP, SCTP, GRE, IPIP, SIX_IN_FOUR, ICMP6 = 6, 17, 1, 132, 47, 4, 41, 58
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16


def ipv4(
    payload: bytes,
    proto: int,
    src: str = "10.0.0.1",
    dst: str = "10.0.0.2",
    *,
    total: int | None = None,
    ident: int = 0,
    offset: int = 0,
    more: bool = False,
    opts: bytes = b"",
    version: int = 4,
    ihl: int | None = None,
) -> bytes:
    """An IPv4 packet (RFC 791); `offset` in bytes; the checksum is left 0."""
    ihl = 5 + len(opts) // 4 if ihl is None else ihl
    total = 20 + len(opts) + len(payload) if total is None else total
    word = (0x2000 if more else 0) | offset // 8
    head = struct.pack(">BBHHHBBH", version << 4 | ihl, 0, total, ident, word, 64, proto, 0)
    return head + ipaddress.IPv4Address(src).packed + ipaddress.IPv4Address(dst).packed + opts + payload


def ipv6(
    payload: bytes,
    next_header: int,
    src: str = "2001:db8::1",
    dst: str = "2001:db8::2",
    *,
    label: int = 0,
    length: int | None = None,
    version: int = 6,
) -> bytes:
    """An IPv6 packet (RFC 8200); extension headers are part of `payload`."""
    length = len(payload) if length is None else length
    head = struct.pack(">IHBB", version << 28 | label, length, next_header, 64)
    return head + ipaddress.IPv6Address(src).packed + ipaddress.IPv6Address(dst).packed + payload


def ip(payload: bytes, proto: int, src: str, dst: str) -> bytes:
    build = ipv6 if ":" in src else ipv4
    return build(payload, proto, src, dst)


HOP_BY_HOP, ROUTING, FRAGMENT, AH, DESTINATION = 0, 43, 44, 51, 60


def ip6_options(next_header: int, units: int = 0) -> bytes:
    """Hop-by-hop or destination options of 8 + 8 * units bytes, filled by one PadN."""
    size = 8 + 8 * units
    return bytes([next_header, units, 1, size - 4]) + bytes(size - 4)


def ip6_routing(next_header: int, segments: Sequence[str]) -> bytes:
    """A segment routing header (RFC 8754)."""
    count = len(segments)
    head = struct.pack(">BBBBBBH", next_header, 2 * count, 4, 0, count - 1, 0, 0)
    return head + b"".join(ipaddress.IPv6Address(s).packed for s in segments)


def ip6_fragment(next_header: int, offset: int, more: bool, ident: int) -> bytes:
    return struct.pack(">BBHI", next_header, 0, offset | more, ident)


def ah(next_header: int, icv: int = 12) -> bytes:
    """An authentication header (RFC 4302): its length counts 4-byte units minus 2."""
    return struct.pack(">BBHII", next_header, (12 + icv) // 4 - 2, 0, 1, 1) + bytes(icv)


def tcp(
    sport: int,
    dport: int,
    flags: int = ACK,
    payload: bytes = b"",
    *,
    seq: int = 0,
    ack: int = 0,
    window: int = 512,
    opts: bytes = b"",
    data_offset: int | None = None,
) -> bytes:
    words = 5 + len(opts) // 4 if data_offset is None else data_offset
    return struct.pack(">HHIIBBHHH", sport, dport, seq, ack, words << 4, flags, window, 0, 0) + opts + payload


def udp(sport: int, dport: int, payload: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack(">HHHH", sport, dport, 8 + len(payload) if length is None else length, 0) + payload


def sctp(sport: int, dport: int, chunks: bytes = bytes(16)) -> bytes:
    return struct.pack(">HHII", sport, dport, 1, 0) + chunks


def icmp_echo(payload: bytes = bytes(56)) -> bytes:
    return struct.pack(">BBHHH", 8, 0, 0, 77, 1) + payload


def gre(
    payload: bytes, protocol: int, *, checksum: bool = False, key: int | None = None, sequence: int | None = None
) -> bytes:
    flags = (0x8000 if checksum else 0) | (0x2000 if key is not None else 0) | (0x1000 if sequence is not None else 0)
    out = struct.pack(">HH", flags, protocol)
    if checksum:
        out += bytes(4)
    if key is not None:
        out += struct.pack(">I", key)
    if sequence is not None:
        out += struct.pack(">I", sequence)
    return out + payload


def vxlan(frame: bytes, vni: int) -> bytes:
    return struct.pack(">II", 0x08000000, vni << 8) + frame


def geneve(payload: bytes, vni: int, protocol: int = TEB, option_words: int = 0) -> bytes:
    return struct.pack(">BBHI", option_words, 0, protocol, vni << 8) + bytes(4 * option_words) + payload


def gtpu(payload: bytes, teid: int, *, sequence: bool = False, extension: bool = False) -> bytes:
    """A GTP-U G-PDU (3GPP TS 29.281), with the optional words and one PDU session container where asked."""
    flags = 0x30 | (0x02 if sequence else 0) | (0x04 if extension else 0)
    optional = b""
    if sequence or extension:
        optional = struct.pack(">HBB", 9, 0, 0x85 if extension else 0)
    if extension:
        optional += bytes([1, 0x10, 9, 0])
    return struct.pack(">BBHI", flags, 255, len(optional) + len(payload), teid) + optional + payload


# --- what the reader said ---------------------------------------------------------------------------------


@dataclass
class Reading:
    """All packets of a capture (kind 0 only, and all), with the reader's counts and warnings."""

    packets: np.ndarray[Any, Any]
    all: np.ndarray[Any, Any]
    stats: Any
    warnings: list[str]

    def tuples(self) -> list[tuple[str, int, str, int, int]]:
        return [five_tuple(p) for p in self.packets]


def read(source: Any, tunnel: str = "inner") -> Reading:
    """Reads a capture given as bytes, a path or a stream to its end."""
    from dinnet.capture import open_capture
    from dinnet.capture.packet import KIND_FLOW, PACKET_DTYPE

    if isinstance(source, bytes):
        source = BytesIO(source)
    with open_capture(source, tunnel=tunnel) as capture:
        arrays = [batch.copy() for batch in capture.batches()]
        everything = np.concatenate(arrays) if arrays else np.empty(0, PACKET_DTYPE)
        return Reading(everything[everything["kind"] == KIND_FLOW], everything, capture.stats, list(capture.warnings))


def address(text: str) -> tuple[int, int]:
    """An address as two 64-bit halves; IPv4 as IPv4-mapped IPv6."""
    value = ipaddress.ip_address(text)
    number = int(value) | 0xFFFF << 32 if value.version == 4 else int(value)
    return number >> 64, number & 0xFFFFFFFFFFFFFFFF


def text(hi: int, lo: int) -> str:
    number = int(hi) << 64 | int(lo)
    if number >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(number & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(number))


def five_tuple(row: Any) -> tuple[str, int, str, int, int]:
    """(source, source port, destination, destination port, protocol) of a packet row or a flow record."""
    return (
        text(row["src_hi"], row["src_lo"]),
        int(row["sport"]),
        text(row["dst_hi"], row["dst_lo"]),
        int(row["dport"]),
        int(row["proto"]),
    )


def row(
    us: int,
    src: str = "10.0.0.1",
    sport: int = 1000,
    dst: str = "10.0.0.2",
    dport: int = 80,
    *,
    proto: int = TCP,
    flags: int = ACK,
    payload: int = 0,
    size: int | None = None,
    seq: int = 0,
    ack: int = 0,
    window: int = 512,
    label: int = 0,
    vlan: int = 0,
    inner_vlan: int = 0,
    tunnel_id: int = 0,
    kind: int = 0,
) -> dict[str, int]:
    """One packet row for the flow table, at T0 + `us`; `size` defaults to plain headers plus payload."""
    version = 6 if ":" in src else 4
    if size is None:
        size = payload + (20 if version == 4 else 40) + {TCP: 20, UDP: 8}.get(proto, 0)
    is_tcp = proto == TCP
    (src_hi, src_lo), (dst_hi, dst_lo) = address(src), address(dst)
    return {
        "time_us": T0 + us, "src_hi": src_hi, "src_lo": src_lo, "dst_hi": dst_hi, "dst_lo": dst_lo,
        "ip_bytes": size, "payload_bytes": payload, "seq": seq if is_tcp else 0, "ack": ack if is_tcp else 0,
        "flow_label": label, "tunnel_id": tunnel_id, "sport": sport, "dport": dport,
        "window": window if is_tcp else 0, "vlan": vlan, "inner_vlan": inner_vlan, "proto": proto,
        "flags": flags if is_tcp else 0, "kind": kind, "marks": 1 if is_tcp else 0, "ip_version": version,
    }  # fmt: skip


def back(us: int, **fields: Any) -> dict[str, int]:
    """The same as `row`, from the other side."""
    return row(us, "10.0.0.2", 80, "10.0.0.1", 1000, **fields)


def rows(items: Sequence[dict[str, int]]) -> np.ndarray[Any, Any]:
    """Packet rows as a PACKET_DTYPE array."""
    from dinnet.capture.packet import PACKET_DTYPE

    out = np.zeros(len(items), PACKET_DTYPE)
    for i, item in enumerate(items):
        for name, value in item.items():
            out[name][i] = value
    return out


def run_table(
    items: Sequence[dict[str, int]], splits: Sequence[int] = (), flush_us: int | None = None, **opts: Any
) -> np.ndarray[Any, Any]:
    """All records of a flow table fed with `items`, cut into several updates at `splits`, and then flushed.

    `flush_us` is the time of the flush after T0; without it the flush knows no time.
    """
    from dinnet.flows.record import RECORD_DTYPE
    from dinnet.flows.table import FlowOptions, FlowTable

    table = FlowTable(FlowOptions(**opts))
    array = rows(items)
    out = [np.empty(0, RECORD_DTYPE)]
    bounds = [0, *sorted(splits), len(items)]
    for start, stop in itertools.pairwise(bounds):
        out.append(table.update(array[start:stop]).copy())
    out.extend(records.copy() for records in table.flush(None if flush_us is None else T0 + flush_us))
    assert table.live == 0
    return np.concatenate(out)
