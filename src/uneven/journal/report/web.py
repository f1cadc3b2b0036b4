"""The live report of a run on the loopback interface: drawn by the browser, updated by server-sent events."""

import json
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, JournalError
from uneven.journal.reader import rank_paths
from uneven.journal.report.html import report_page
from uneven.journal.report.http_server import HttpServer, TokenHandler
from uneven.journal.report.page import BESIDE, Page, escape, head, plotly

_BREATH = 10.0  # least pause ÷ duration of a drawing, so that a long run's page costs at most a tenth of a core
_ALIVE_EVERY_S = 15.0
_FIRST_WITHIN_S = 5.0
_WAITING: dict[str, Any] = {"lead": "", "advice": "", "parts": [], "problem": "the first drawing is in progress"}
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_FOLLOW = """
const boxes = new Map();
function show(part, after) {
  let box = boxes.get(part.title);
  if (!box) {
    box = document.createElement("div");
    boxes.set(part.title, box);
  }
  if (box.previousElementSibling !== after) after.after(box);
  if (box.dataset.html !== part.html) {
    box.dataset.html = part.html;
    box.innerHTML = part.html;
  }
  if (part.figure) {
    const figure = JSON.parse(part.figure);
    figure.layout.uirevision = "kept";  // keeps the user's zoom
    Plotly.react(box.querySelector(".figure"), figure.data, figure.layout, {responsive: true, displayModeBar: false});
  }
  return box;
}
function update(page) {
  document.getElementById("lead").textContent = page.lead;
  let last = document.getElementById("advice");
  last.textContent = page.advice && `Advice: ${page.advice}.`;
  for (const part of page.parts) last = show(part, last);
  document.getElementById("state").textContent = page.problem || `drawn at ${new Date().toLocaleTimeString()}`;
}
update(JSON.parse(document.getElementById("first").textContent));
const source = new EventSource("events");
source.onmessage = (event) => update(JSON.parse(event.data));
source.onerror = () => { document.getElementById("state").textContent = "uneven watch has ended"; };
"""


class LiveReport:
    """The newest report of a run, drawn again when its journal has grown, at most every ``every_s`` seconds."""

    def __init__(self, run: Path, every_s: float, page: Callable[[Path], Page]) -> None:
        self.run = run
        self._every_s = every_s
        self._page = page
        self._changed = threading.Condition()
        self._version = 0
        self._text = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="uneven-live-report", daemon=True)
        self._thread.start()

    def newer(self, version: int, within_s: float) -> tuple[int, str]:
        """Return the report after ``version`` as JSON; the same version and "" if there is none within that time."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version or self._over.is_set(), within_s)
            return (self._version, self._text) if self._version > version else (version, "")

    @property
    def closed(self) -> bool:
        return self._over.is_set()

    def close(self) -> None:
        """Stop drawing and wake waiting requests."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _draw(self) -> None:
        drawn: object = None
        while not self._over.is_set():
            began_s = time.monotonic()
            grown = [(path, path.stat().st_size) for path in rank_paths(self.run).values()]
            if grown != drawn:
                drawn = grown
                text = json.dumps(self._drawn())
                with self._changed:
                    self._version, self._text = self._version + 1, text
                    self._changed.notify_all()
            self._over.wait(max(self._every_s, _BREATH * (time.monotonic() - began_s)))

    def _drawn(self) -> dict[str, Any]:
        try:
            page, problem = self._page(self.run), ""
        except JournalError as error:
            page, problem = Page(f"Run {self.run.name}", "waiting for the first records"), str(error)
        parts = [{"title": part.title, "html": part.before + part.after, "figure": part.figure} for part in page.parts]
        return {"lead": page.lead, "advice": page.advice, "parts": parts, "problem": problem}


class WebServer(HttpServer):
    """A server of a run's page at ``address`` (with its token) until it is closed; a ``with`` block closes it.

    ``page`` draws the page again after each change.

    Raises:
        ConfigError: the port is in use.
    """

    def __init__(
        self, run: Path, *, port: int = 0, every_s: float = 1.0, page: Callable[[Path], Page] = report_page
    ) -> None:
        self._live = LiveReport(run, every_s, page)
        try:
            super().__init__(_Handler, port, live=self._live, token=secrets.token_urlsafe(24))
        except ConfigError:
            self._live.close()
            raise

    def close(self) -> None:
        self._live.close()
        super().close()


class _Handler(TokenHandler):
    live: LiveReport

    def do_GET(self) -> None:
        rest = self.asked()
        if rest == "":
            self.answer("text/html; charset=utf-8", _shell(self.live).encode(), Content_Security_Policy=_POLICY)
        elif rest == BESIDE:
            self.answer("text/javascript; charset=utf-8", plotly().encode())
        elif rest == "events":
            self._stream()
        elif rest is not None:
            self.send_error(404)

    def _stream(self) -> None:
        self.head("text/event-stream")
        self.end_headers()
        version = 0
        while not self.live.closed:
            version, text = self.live.newer(version, _ALIVE_EVERY_S)
            try:
                self.wfile.write(f"data: {text}\n\n".encode() if text else b": alive\n\n")
                self.wfile.flush()
            except (ConnectionError, TimeoutError):
                return  # the browser has closed the page


def _shell(live: LiveReport) -> str:
    name = f"Run {live.run.resolve().name}"
    first = (live.newer(0, _FIRST_WITHIN_S)[1] or json.dumps(_WAITING)).replace("<", "\\u003c")
    return (
        f'{head(name)}<body><main><h1>{escape(name)}</h1><p class="note" id="lead"></p><p id="advice"></p>\n'
        '<footer id="state">waiting for the first records</footer></main>\n'
        f'<script type="application/json" id="first">{first}</script>\n'
        f'<script src="{BESIDE}"></script>\n<script>{_FOLLOW}</script></body></html>\n'
    )
