"""The report: one HTML page that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from dinnet import __version__
from dinnet.errors import printable
from dinnet.report.digest import Digest
from dinnet.report.pipeline import CaptureFacts
from dinnet.report.plots import confidence_plot, scatter_plot, share_bar, time_plot
from dinnet.report.rows import CLASS_NAMES
from dinnet.report.table import FLOW_HEADINGS, capture_lines, flow_cells
from dinnet.report.units import human_bytes

#: The browser itself refuses whatever is not in the page.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_SCRIPT: Final = """
for (const tile of document.querySelectorAll(".tiles button"))
  tile.addEventListener("click", () => {
    const hidden = document.body.classList.toggle("hide-" + tile.dataset.name);
    tile.setAttribute("aria-pressed", String(!hidden));
  });
"""
_NUMBERS: Final = {"conf.", "packets", "bytes", "duration", "checkpoint"}
_MANY: Final = 200


def html_report(digest: Digest, captures: Sequence[CaptureFacts]) -> str:
    """The whole page. Everything that comes from a capture or a file name is escaped."""
    style = files("dinnet.report").joinpath("page.css").read_text("utf-8")
    title = captures[0].name if len(captures) == 1 else f"{len(captures)} captures"
    totals = digest.totals
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_safe(title)} - dinnet</title>
<style>{style}</style></head>
<body><main>
<header><h1>{_safe(title)}</h1><p>{sum(totals.flows):,} flows, {sum(totals.packets):,} packets, \
{human_bytes(sum(totals.bytes))} in flows</p></header>
<div class="tiles">{_tiles(digest)}</div>
{share_bar(totals.bytes)}
<section><h2>Classes over time</h2>
<p class="note">A flow's bytes are spread evenly from its first to its last packet. \
Choose a class above to hide or show it.</p>
{time_plot(digest.strip)}</section>
<div class="grid2">
<section><h2>Sizes against gaps</h2><p class="note">A random sample of at most 400 flows of each class.</p>
{scatter_plot(digest.sample)}</section>
<section><h2>Confidence</h2><p class="note">How sure the classifier was of each flow.</p>
{confidence_plot(digest)}</section>
</div>
<section><h2>Largest flows</h2><p class="note">The {min(len(digest.top.rows()), digest.top.seen):,} with the most \
bytes, of {digest.top.seen:,}. Packets are forward/reverse.</p>
<div class="scroll">{_flows(digest, [fact.name for fact in captures])}</div></section>
<div class="grid2">
<section><h2>Top talkers</h2><p class="note">Bytes sent and received.</p>
<div class="scroll">{_talkers(digest)}</div></section>
<section><h2>{"Capture" if len(captures) == 1 else "Captures"}</h2><p class="note">What was read.</p>
<div class="scroll">{_facts(captures)}</div></section>
</div>
{_messages(captures)}
<footer>Made by dinnet {__version__}. Times are the packets' own.</footer>
</main><script>{_SCRIPT}</script></body></html>
"""


def _safe(text: str) -> str:
    return escape(printable(text))


def _tiles(digest: Digest) -> str:
    totals = digest.totals
    everything = sum(totals.bytes) or 1
    return "".join(
        f'<button type="button" class="c-{name}" data-name="{name}" aria-pressed="true">'
        f'<span class="name">{name}</span><b>{100 * totals.bytes[index] / everything:.1f} % <small>of bytes</small></b>'
        f"<i>{human_bytes(totals.bytes[index])}, {totals.flows[index]:,} flows</i></button>"
        for index, name in enumerate(CLASS_NAMES)
    )


def _table(headings: Iterable[str], lines: Iterable[str]) -> str:
    head = "".join(f'<th scope="col"{_align(name)}>{escape(name)}</th>' for name in headings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _align(name: str) -> str:
    return ' class="n"' if name in _NUMBERS or name == "flows" else ""


def _flows(digest: Digest, names: Sequence[str]) -> str:
    cells = list(flow_cells(digest.top.rows(), names))
    shown = [place for place, name in enumerate(FLOW_HEADINGS) if any(line[place] for line in cells)]
    place_of_class = FLOW_HEADINGS.index("class")
    lines = []
    for line in cells:
        name = line[place_of_class]
        columns = "".join(
            f'<td><span class="tag c-{name}">{name}</span></td>'
            if place == place_of_class
            else f"<td{_align(FLOW_HEADINGS[place])}>{_safe(line[place])}</td>"
            for place in shown
        )
        lines.append(f'<tr class="r-{name}">{columns}</tr>')
    return _table([FLOW_HEADINGS[place] for place in shown], lines)


def _talkers(digest: Digest) -> str:
    return _table(
        ("address", "bytes", "flows"),
        (
            f'<tr><td>{_safe(address)}</td><td class="n">{human_bytes(amount)}</td><td class="n">{flows:,}</td></tr>'
            for address, amount, flows in digest.talkers.top(12)
        ),
    )


def _facts(captures: Sequence[CaptureFacts]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_safe(name)}</th><td class="wrap">{_safe(value)}</td></tr>'
        for name, value in capture_lines(captures)
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _messages(captures: Sequence[CaptureFacts]) -> str:
    messages = [warning for fact in captures for warning in fact.warnings]
    messages += [fact.error for fact in captures if fact.error]
    if not messages:
        return ""
    rest = f"<li>and {len(messages) - _MANY:,} more</li>" if len(messages) > _MANY else ""
    items = "".join(f'<li class="warn">{_safe(message)}</li>' for message in messages[:_MANY])
    return f"<section><h2>Warnings and errors</h2><ul>{items}{rest}</ul></section>"
