"""`dinnet classify`: from packets to a table of flows with class and confidence."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from dinnet.cli.lazy import LazyGroup, Part
from dinnet.cli.options import finite
from dinnet.cli.streams import tell
from dinnet.errors import UsageError, printable


class _Commands(LazyGroup):
    parts: ClassVar = {"live": Part("dinnet.cli.live", "live", "Classify the flows of an interface, as they happen.")}


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
)


class Format(StrEnum):
    table = "table"
    json = "json"
    ndjson = "ndjson"
    csv = "csv"
    parquet = "parquet"


class Checkpoint(StrEnum):
    first = "first"
    last = "last"
    all = "all"


class Engine(StrEnum):
    local = "local"
    ray = "ray"


class Tunnel(StrEnum):
    inner = "inner"
    outer = "outer"


class Sort(StrEnum):
    bytes = "bytes"
    packets = "packets"
    duration = "duration"
    confidence = "confidence"
    first = "first"
    last = "last"
    by_class = "class"


@app.callback()
def _noun() -> None:
    """Tell the flows of LLM inference apart, from a capture or live."""


@app.command("pcap")
def pcap(
    captures: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Captures (pcap, pcapng; plain, gzip, zstd), folders, glob patterns, or - for standard input.",
            show_default=False,
        ),
    ],
    format_: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="Default: as the name of --out says, else a table.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write here, whole or not at all.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write a report with plots: one page that needs nothing else."),
    ] = None,
    summary: Annotated[
        bool | None,
        typer.Option(
            "--summary/--no-summary",
            help="Flows, bytes and packets per class, top talkers, time strip. Default: with a table on a terminal.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        Checkpoint, typer.Option(help="Judge a flow at its first checkpoint, at its end, or at every checkpoint.")
    ] = Checkpoint.last,
    min_confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=finite, help="Call a flow unclassified below this confidence.")
    ] = 0.0,
    sort: Annotated[
        Sort | None, typer.Option(help="Order of a table. Default: bytes on a terminal.", show_default=False)
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=0, help="Flows in a table, 0 for all. Default: 40 on a terminal.", show_default=False),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of a trained model. Default: the shipped one.", show_default=False),
    ] = None,
    tunnel: Annotated[
        Tunnel, typer.Option(help="Flows inside GRE, VXLAN, Geneve, GTP-U and IP-in-IP, or the tunnels themselves.")
    ] = Tunnel.inner,
    idle_timeout: Annotated[
        float, typer.Option(callback=finite, help="Seconds without a packet that end a flow.")
    ] = 120.0,
    active_timeout: Annotated[
        float, typer.Option(callback=finite, help="Seconds after which a long flow is cut.")
    ] = 1800.0,
    join_vlans: Annotated[bool, typer.Option("--join-vlans", help="Leave VLAN IDs out of a flow's key.")] = False,
    split_flow_labels: Annotated[
        bool, typer.Option("--split-flow-labels", help="Put the IPv6 flow label into a flow's key.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", "-j", min=1, help="Captures read at the same time.", show_default="1")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Where to read: this machine, or a Ray cluster.")] = Engine.local,
) -> None:
    """Classify the flows of capture files.

    Exit codes: 0 good; 1 a capture, the model or the output failed (other captures are still shown); 2 wrong use.
    """
    from dinnet.report.inputs import find_captures
    from dinnet.report.interrupt import interruptible
    from dinnet.report.output import is_terminal
    from dinnet.report.pipeline import Settings
    from dinnet.report.progress import progress_bar
    from dinnet.report.session import View, check_view, choose_format, exit_code, present, run_engine

    if captures == ["-"] and sys.stdin is None:
        raise UsageError("-: standard input is closed; pipe a capture into it")
    if captures == ["-"] and is_terminal(sys.stdin):
        raise UsageError("-: standard input is a terminal; pipe a capture into it, as in tcpdump -w - | dinnet ...")
    files = find_captures(captures)
    chosen = choose_format(format_.value if format_ else None, out)
    on_terminal = chosen == "table" and out is None and is_terminal(sys.stdout)
    view = View(
        format=chosen,
        out=out,
        html=html,
        summary=on_terminal if summary is None else summary,
        sort=sort.value if sort else None,
        top=top,
    )
    check_view(view, files)
    settings = Settings(
        tunnel=tunnel.value,
        idle_timeout_s=idle_timeout,
        active_timeout_s=active_timeout,
        checkpoint=checkpoint.value,
        join_vlans=join_vlans,
        split_flow_labels=split_flow_labels,
        model=str(model) if model else None,
        min_confidence=min_confidence,
    )
    settings.flow_options()  # refuses impossible timeouts before anything is opened
    with interruptible(), progress_bar(files) as (console, on_progress):

        def notify(message: str) -> None:
            if console is None:
                tell(f"dinnet: {message}")
            else:
                console.print(f"dinnet: {printable(message)}", markup=False, highlight=False, soft_wrap=True)

        items = run_engine(files, settings, engine=engine.value, workers=workers, on_progress=on_progress)
        done = present(files, items, view, settings, notify)
    if exit_code(done):
        raise typer.Exit(1)
