"""Plotly's code for a page: compressed inside it, or in a file next to it."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from pathlib import Path

from uneven.errors import ConfigError, install_hint

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
