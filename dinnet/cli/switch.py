"""`dinnet switch`: the embedded switch, from bringing it up to looking at what it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dinnet.cli.options import finite
from dinnet.cli.streams import show, tell

if TYPE_CHECKING:
    from dinnet.switch.attach import Switch
    from dinnet.switch.config import SwitchConfig
    from dinnet.switch.snapshot import Snapshot
    from dinnet.switch.target import Pipeline

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})

_Config = Annotated[
    Path, typer.Option("--config", "-c", dir_okay=False, metavar="FILE", help="The switch's description (YAML).")
]
_Netns = Annotated[
    str | None, typer.Option(metavar="NAME", help="Network namespace of the switch, a name as in `ip netns`.")
]
_ETHERNET_BYTES: Final = 14


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class Table(StrEnum):
    PORTS = "ports"
    MICROFLOWS = "microflow"
    FLOWS = "flows"
    QUEUES = "queues"


@app.callback()
def _switch() -> None:
    """Run and look at the embedded eBPF switch."""


@app.command()
def up(config: _Config) -> None:
    """Bring a switch into force and serve P4Runtime, until Ctrl-C.

    When the server ends, however it ends, the switch goes on forwarding and marking; the next `up` takes it over with
    all its entries. `dinnet switch down` takes it away.
    """
    from dinnet.switch.config import load_config

    description = load_config(config)
    with _bring_up(description) as switch:
        tell(
            f"dinnet: switch {description.name} {'taken over' if switch.adopted else 'is up'}: "
            f"{len(description.ports)} ports{_where(description.netns)}"
        )
        with _measuring(switch, description):
            _serve(switch, description)


@contextmanager
def _measuring(switch: Switch, description: SwitchConfig) -> Iterator[None]:
    """Measure the queues where that is wanted and can be done; the switch does not need it."""
    from dinnet.switch.libbpf import BpfError
    from dinnet.switch.queues import measuring

    with ExitStack() as stack:
        if description.queue_telemetry:
            try:
                stack.enter_context(measuring(switch.datapath, description.netns))
                tell("dinnet: queue telemetry is on; it ends with the server")
            except BpfError as error:
                tell(f"dinnet: no queue telemetry: {str(error).splitlines()[0]}")
        yield


def _bring_up(description: SwitchConfig) -> Switch:
    from dinnet.switch.attach import PortConfig, Switch
    from dinnet.switch.contract import Sizes

    return Switch.up(
        [PortConfig(number, interface) for number, interface in sorted(description.ports.items())],
        namespace=description.netns,
        sizes=Sizes(microflows=description.tables.microflows, flows=description.tables.flows),
    )


def _serve(switch: Switch, description: SwitchConfig) -> None:
    import asyncio
    import signal

    from dinnet.switch.ebpf import EbpfTarget
    from dinnet.switch.server import ServerOptions, TlsFiles, serving

    runtime = description.p4runtime
    tls = TlsFiles(runtime.tls.cert, runtime.tls.key, runtime.tls.client_ca) if runtime.tls else None
    options = ServerOptions(address=runtime.listen, device_id=description.device_id, tls=tls)

    async def run() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        target = EbpfTarget(switch)
        if target.running() is None:
            target.load(_pipeline(), keep=False)
        async with serving(target, options) as server:
            tell(f"dinnet: P4Runtime on {server.address}, device {description.device_id}; Ctrl-C ends the server")
            await ended.wait()

    asyncio.run(run())
    down_command = f"dinnet switch down{f' --netns {description.netns}' if description.netns else ''}"
    tell(f"dinnet: the server has ended; the switch goes on forwarding ({down_command} takes it away)")


def _pipeline() -> Pipeline:
    """What the switch runs from the start, so that clients can read before they set anything."""
    from dinnet.dataplane.program import dinnet_program
    from dinnet.switch.target import Pipeline

    program = dinnet_program()
    return Pipeline(program.info, program.message.SerializeToString(), program.device_config, program.cookie)


@app.command()
def down(netns: _Netns = None) -> None:
    """Take the switch away: its filters, tables and programs. Interfaces are as they were before."""
    from dinnet.errors import DinnetError
    from dinnet.switch.attach import take_down

    interfaces = take_down(netns)
    if not interfaces:
        raise DinnetError(f"no dinnet switch is in force{_where(netns)}")
    show(f"taken away from {', '.join(sorted(interfaces))}")


@app.command()
def status(
    netns: _Netns = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="For people, or for programs.")] = Format.TABLE,
) -> None:
    """Show ports, packets by kind, marks, drops by reason and how full the tables are."""
    from dinnet.switch.snapshot import opened, take

    with opened(netns) as datapath:
        snapshot = take(datapath, netns)
    if output is Format.JSON:
        typer.echo(json.dumps(_plain(snapshot), indent=1))
    else:
        _print(snapshot, None)


@app.command()
def top(
    netns: _Netns = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, callback=finite, metavar="S", help="Seconds.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N pictures.")] = None,
) -> None:
    """Show rates, live, until Ctrl-C."""
    import itertools
    import time

    from dinnet.switch.snapshot import opened, take

    with opened(netns) as datapath:
        before = take(datapath, netns)
        for _ in itertools.count() if count is None else range(count):
            time.sleep(interval)
            now = take(datapath, netns)
            if count != 1:
                typer.echo("\x1b[2J\x1b[H", nl=False)  # an empty screen
            _print(now, before)
            before = now


@app.command()
def dump(
    table: Annotated[Table, typer.Argument(help="What to list.")],
    netns: _Netns = None,
) -> None:
    """List ports, queues, micro-flows or flow records under way: one JSON object a line."""
    from dinnet.switch.snapshot import flow_rows, microflow_rows, opened, queue_row, take

    with opened(netns) as datapath:
        rows: Iterator[dict[str, Any]]
        if table is Table.PORTS:
            rows = (asdict(port) for port in take(datapath, netns).ports)
        elif table is Table.QUEUES:
            rows = (queue_row(queue) for queue in take(datapath, netns).queues)
        elif table is Table.MICROFLOWS:
            rows = microflow_rows(datapath)
        else:
            rows = flow_rows(datapath)
        for row in rows:
            typer.echo(json.dumps(row))


@app.command()
def trace(
    port: Annotated[int, typer.Argument(min=0, max=509, metavar="PORT", help="The port it comes in on.")],
    frame: Annotated[str, typer.Argument(metavar="FRAME", help="The Ethernet frame in hexadecimal digits.")],
    netns: _Netns = None,
) -> None:
    """Show what each table does to a frame. Nothing is sent, and no counter moves."""
    from dinnet.switch.snapshot import opened
    from dinnet.switch.trace import trace as steps

    try:
        data = bytes.fromhex(frame)
    except ValueError:
        raise typer.BadParameter("a frame is hexadecimal digits, as Wireshark copies them as a hex stream") from None
    if len(data) < _ETHERNET_BYTES:
        raise typer.BadParameter(f"a frame has at least {_ETHERNET_BYTES} bytes, this has {len(data)}")
    with opened(netns) as datapath:
        for step in steps(datapath, port, data):
            show(f"{step.stage:13} {step.outcome}")


def _where(netns: str | None) -> str:
    return f" in network namespace {netns}" if netns else ""


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    """For JSON: counters as objects, keys of several parts as lists of objects."""
    from dinnet.switch.snapshot import queue_row

    return {
        "ports": [{**asdict(port), "rx": port.rx._asdict(), "tx": port.tx._asdict()} for port in snapshot.ports],
        "parsed": {kind: cell._asdict() for kind, cell in snapshot.parsed.items()},
        "drops": {reason: cell._asdict() for reason, cell in snapshot.drops.items()},
        "marks": [
            {"slice": number, "tc": tc, "colour": colour, **cell._asdict()}
            for (number, tc, colour), cell in snapshot.marks.items()
        ],
        "exceeded": [
            {"slice": number, "bucket": bucket, "action": action, **cell._asdict()}
            for (number, bucket, action), cell in snapshot.exceeded.items()
        ],
        "entries": snapshot.entries,
        "flows": snapshot.flows,
        "flow_collisions": snapshot.collisions._asdict(),
        "lost_records": snapshot.lost_records,
        "lost_packet_ins": snapshot.lost_packet_ins,
        "queues": [queue_row(queue) for queue in snapshot.queues],
        "queue_misses": {miss: cell._asdict() for miss, cell in snapshot.queue_misses.items()},
        "measuring_queues": snapshot.measuring,
    }


def _print(now: Snapshot, before: Snapshot | None) -> None:
    from rich.console import Console

    from dinnet.switch.view import picture

    Console(highlight=False).print(picture(now, before))
