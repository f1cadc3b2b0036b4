"""A self-contained HTML page with tables, notes and pictures, which needs no network."""

import base64
import gzip
import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from uneven.errors import ConfigError, install_hint
from uneven.journal.report.pure.draw import Figure
from uneven.policy.core.printable import printable

BESIDE = "plotly.min.js"  # the file that several pages share

_DRAW = """
function draw() {
  for (const box of document.querySelectorAll(".figure")) {
    const figure = JSON.parse(box.nextElementSibling.textContent);
    Plotly.newPlot(box, figure.data, figure.layout, {responsive: true, displayModeBar: false});
  }
}
"""

_UNPACK = """
const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
new Response(stream).text().then((code) => {
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  draw();
});
"""


def plotly() -> str:
    """Return Plotly for browsers, 4.8 MB."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(f"Plotly is not installed: {install_hint('.[report]')}") from error

    code: str = get_plotlyjs()
    return code


@cache
def packed() -> str:
    """Return Plotly, compressed, as text: 1.9 MB."""
    # Browsers since 2023 decompress it themselves. mtime=0 makes equal pages equal files.
    return base64.b64encode(gzip.compress(plotly().encode(), mtime=0)).decode()


def inside() -> str:
    # The end of a page, after all pictures that the script draws.
    return f'<script type="text/plain" id="plotly">{packed()}</script>\n<script>{_DRAW}{_UNPACK}</script>'


def beside() -> str:
    return f'<script src="{BESIDE}"></script>\n<script>{_DRAW}draw();</script>'


def write_beside(folder: Path) -> Path:
    """Write Plotly into the folder of a page; the caller handles errors."""
    path = folder / BESIDE
    path.write_text(plotly(), encoding="utf-8")
    return path


STYLE = """
:root { color-scheme: only light; }  /* the pictures have a white background */
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #f6f6f4; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 0 0 2px; }
section, .card { background: #fff; border: 1px solid #e3e3df; border-radius: 8px; }
section { padding: 16px 20px; margin: 16px 0; }
p.note { color: #666; margin: 0 0 8px; max-width: 80ch; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.card { padding: 10px 16px; min-width: 130px; }
.card b { display: block; font-size: 22px; font-weight: 600; } .card span { color: #666; font-size: 13px; }
.pictures { display: flex; flex-wrap: wrap; gap: 4px; }
.scroll { overflow: auto; max-height: 480px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
th { color: #666; font-weight: 500; position: sticky; top: 0; background: #fff; }
th.text, td.text { text-align: left; white-space: normal; }
td.text:last-child { min-width: 24ch; }
.text p { white-space: pre-wrap; margin: 8px 0; max-width: 100ch; }
.text .scroll { margin: 12px 0; } .text td.text:last-child { min-width: 0; }
footer { color: #888; font-size: 13px; }
"""


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of strings; ``text`` holds the indices of left-aligned text columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: frozenset[int] = frozenset({0})


class PagePart(NamedTuple):
    """A section of a page, or its cards."""

    title: str  # of the section; empty for cards
    before: str  # HTML around the picture's data
    after: str = ""
    figure: str = ""  # the picture as JSON; empty if there is none

    @property
    def html(self) -> str:
        data = f'<script type="application/json">{self.figure}</script>' if self.figure else ""
        return self.before + data + self.after


@dataclass(slots=True)
class Page:
    """A page, collected part by part from top to bottom."""

    title: str
    lead: str = ""
    advice: str = ""  # a sentence without a full stop
    figures: dict[str, Figure] = field(default_factory=dict)  # title → picture
    parts: list[PagePart] = field(default_factory=list)  # all parts in order

    def cards(self, values: Iterable[tuple[str, str]]) -> None:
        """Add key numbers: pairs of value and meaning."""
        cards = "".join(
            f'<div class="card"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in values
        )
        self.parts.append(PagePart("", f'<div class="cards">{cards}</div>'))

    def table(self, title: str, table: PageTable, note: str = "") -> None:
        self._section(title, note, f'<div class="scroll">{_table(table)}</div>')

    def text(self, title: str, blocks: Iterable[str | PageTable]) -> None:
        """Add a section of paragraphs, whose line breaks stay, and of tables."""
        shown = [
            f'<div class="scroll">{_table(one)}</div>' if isinstance(one, PageTable) else f"<p>{escape(one)}</p>"
            for one in blocks
        ]
        self._section(title, "", f'<div class="text">{"".join(shown)}</div>')

    def figure(self, title: str, figure: Figure, note: str = "") -> None:
        """Add a section with a picture, unless it is empty."""
        if figure["data"]:
            self.figures[title] = figure
            text = as_json(figure)
            height = figure["layout"]["height"]
            box = f'<div class="figure" style="height:{height}px"></div>'
            self._section(title, note, box, text)

    def pictures(self, title: str, sources: Sequence[str]) -> None:
        """Add small pictures side by side; each source is a ``data:`` address, so that the page needs no network."""
        shown = "".join(f'<img src="{escape(source)}" height="72" alt="">' for source in sources)
        self._section(title, "", f'<div class="pictures">{shown}</div>')

    def _section(self, title: str, note: str, body: str, figure: str = "") -> None:
        about = f'<p class="note">{escape(note)}</p>' if note else ""
        before = f"<section><h2>{escape(title)}</h2>{about}{body}"
        self.parts.append(PagePart(title, before, "</section>", figure))

    def html(self, *, plotly_beside: bool = False) -> str:
        """Return the document with Plotly inside it, or in a file next to it, which the caller writes."""
        lead = f'<p class="note">{escape(self.lead)}</p>' if self.lead else ""
        lead += f"<p>Advice: {escape(self.advice)}.</p>" if self.advice else ""
        return (
            f"{head(self.title)}<body><main><h1>{escape(self.title)}</h1>{lead}\n"
            + "\n".join(part.html for part in self.parts)
            + "\n"
            "<footer>Written by uneven from the run's journal. The page needs no network. "
            "Drag to zoom into a picture, double-click to go back; click a name to hide it.</footer></main>\n"
            f"{beside() if plotly_beside else inside()}</body></html>\n"
        )


def head(title: str) -> str:
    """Return the beginning of a document, up to its body."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
    )


def _table(table: PageTable) -> str:
    def cell(tag: str, position: int, value: str) -> str:
        kind = ' class="text"' if position in table.text else ""
        return f"<{tag}{kind}>{escape(value)}</{tag}>"

    def row(tag: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, i, value) for i, value in enumerate(values)) + "</tr>"

    body = "".join(row("td", values) for values in table.rows)
    return f"<table><thead>{row('th', table.columns)}</thead><tbody>{body}</tbody></table>"


def escape(text: str) -> str:
    """Return text that HTML shows literally."""
    return html.escape(printable(text))


def as_json(figure: Figure) -> str:
    """Return a figure as JSON for a script element."""
    # Escaped "<", so that no text in it can end the script element. JSON has no NaN; _shown makes it null.
    return json.dumps(_shown(figure), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _shown(value: Any, key: str = "") -> Any:
    """Return a figure whose texts Plotly shows literally, although it interprets some HTML in them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # Hover templates are our own and hold no names, so they keep their HTML.
    if isinstance(value, str):
        return value if key.endswith("template") else printable(value).replace("&", "&amp;").replace("<", "&lt;")
    if isinstance(value, dict):
        return {name: _shown(item, name) for name, item in value.items()}
    return [_shown(item, key) for item in value] if isinstance(value, list | tuple) else value
