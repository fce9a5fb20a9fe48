"""The same kinds of traffic over further links: what differs is only how the messages are framed and protected.

A classifier that has seen each kind over many links learns the kind; one that has seen each kind over
one link learns the link.
"""

from __future__ import annotations

from collections.abc import Iterable

from dinnet.testbed.workloads import control, data, kv, prompts, stages, tokens
from dinnet.testbed.workloads.links import (
    GrpcLink,
    GrpcUnaryLink,
    HttpLink,
    Link,
    LinkWorkload,
    RawLink,
    RespLink,
    WebSocketLink,
    ZmqLink,
)
from dinnet.testbed.workloads.session import SocketWorkload

_LINKS: dict[str, tuple[type[Link], bool]] = {
    "tcp": (RawLink, False),
    "tls": (RawLink, True),
    "zmq": (ZmqLink, False),
    "http": (HttpLink, False),
    "https": (HttpLink, True),
    "grpc": (GrpcLink, False),
    "grpc-stream": (GrpcLink, False),
    "grpc-tls": (GrpcLink, True),
    "grpc-unary": (GrpcUnaryLink, False),
    "grpc-unary-tls": (GrpcUnaryLink, True),
    "websocket": (WebSocketLink, False),
    "websocket-tls": (WebSocketLink, True),
    "redis": (RespLink, False),
}


def _over(base: type[LinkWorkload] | type[tokens.LinkTokens], kind: str, names: str) -> Iterable[type[SocketWorkload]]:
    """`base` over each of the links in `names`, called kind-link."""
    for name in names.split():
        link, tls = _LINKS[name]
        title = f"{kind}-{name}"
        members = {"name": title, "link": link, "tls": tls, "__module__": __name__, "__doc__": base.__doc__}
        yield type("".join(part.title() for part in title.replace("/", "-").split("-")), (base,), members)


class _TlsScrape(control.Scrape):
    name = "control/prometheus-scrape-tls"
    tls = True


class _TlsRsync(data.RsyncPush):
    name = "data/rsync-push-tls"
    tls = True


class _TlsChunkedGet(data.ChunkedGet):
    name = "data/https-chunked-get"
    tls = True


class _TlsNdjson(tokens.NdjsonTokens):
    name = "tokens/ndjson-tls"
    tls = True


class _TlsKvOneShot(kv.KvOneShot):
    name = "kv/oneshot-tls"
    tls = True


class _TlsKvParallel(kv.KvParallel):
    name = "kv/parallel-tls"
    tls = True


VARIANTS: tuple[type[SocketWorkload], ...] = (
    *_over(prompts.HttpJsonPrompt, "prompt/text", "websocket websocket-tls redis"),
    *_over(prompts.TokenIdsPrompt, "prompt/token-ids", "tls grpc grpc-unary-tls http redis"),
    *_over(kv.KvPush, "kv/layers", "https grpc-unary grpc-tls websocket redis"),
    *_over(kv.KvOneShot, "kv/oneshot", "http https grpc zmq redis"),
    *_over(kv.KvPull, "kv/pull", "zmq grpc grpc-unary grpc-unary-tls redis websocket"),
    _TlsKvOneShot,
    _TlsKvParallel,
    *_over(stages.PrefillStage, "stage/prefill", "tls http grpc-unary grpc-tls websocket"),
    *_over(stages.DecodeStage, "stage/decode", "tls http https grpc-tls websocket-tls redis"),
    *_over(tokens.LinkTokens, "tokens/events", "tls grpc grpc-tls websocket-tls"),
    _TlsNdjson,
    *_over(control.Heartbeat, "control/heartbeat", "tls http https grpc grpc-unary-tls websocket redis"),
    *_over(control.Dispatch, "control/dispatch", "zmq http https grpc-stream tls redis websocket"),
    *_over(control.LongPoll, "control/longpoll", "https grpc-unary tcp"),
    *_over(control.Watch, "control/watch", "tcp tls zmq websocket grpc-tls websocket-tls"),
    _TlsScrape,
    *_over(data.LogShippingTcp, "data/batches", "tls https grpc grpc-unary zmq redis websocket"),
    *_over(data.SamplesUpload, "data/samples", "tcp tls http https zmq"),
    *_over(data.CheckpointUpload, "data/checkpoint", "http grpc grpc-tls zmq websocket-tls redis"),
    *_over(data.PeerExchange, "data/p2p", "tls grpc websocket"),
    _TlsRsync,
    _TlsChunkedGet,
)
