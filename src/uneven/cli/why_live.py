"""The explanation of ``uneven why`` during a run, renewed in a terminal and on the page of ``uneven watch --web``."""

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from rich.live import Live
from rich.text import Text

from uneven import journal
from uneven.cli.why_page import as_text, blocks
from uneven.errors import JournalError
from uneven.journal.report.console import Console
from uneven.journal.report.html import report_page
from uneven.journal.report.page import Page
from uneven.journal.report.terminal import PLAIN_LINE_EVERY_S, WatchedRun, over
from uneven.why.explanation import explained
from uneven.why.pure.findings import Explanation
from uneven.why.pure.remedies import with_remedies

_NEWEST_BYTES = 400_000.0  # of each journal: about a thousand steps
_RENEWED_EVERY_S = 2.0  # in a terminal
_BREATH = 10.0  # least pause ÷ duration of an explanation, so that it costs at most a tenth of a core


class LiveExplanation:
    """The explanation of a run's newest steps; remedies are simulated again only if the slow workers change."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._simulated: Explanation | None = None  # the last one whose remedies were simulated

    def newest(self) -> Explanation:
        """Return the explanation as of now; raise JournalError before its journal exists."""
        records = list(journal.read(self._run, _NEWEST_BYTES).records())
        found = explained(self._run.resolve().name, records)
        if self._simulated is None or _slow(found) != _slow(self._simulated):
            self._simulated = with_remedies(found, records)
        return replace(found, remedies=self._simulated.remedies, note=found.note or self._simulated.note)

    def page(self, run: Path) -> Page:
        """Return the report of a run with the explanation in it."""
        page = report_page(run)
        page.text("Who is slow, and why", blocks(self.newest()))
        page.parts.insert(1, page.parts.pop())  # after the key numbers
        return page


def _slow(found: Explanation) -> list[tuple[int, str]]:
    return [(one.rank, one.cause) for one in found.suspects]


def watch(run: Path) -> None:
    """Renew the explanation of a run until it ends, or until Ctrl-C."""
    watched = WatchedRun(run)

    def ended(within_s: float) -> bool:
        time.sleep(within_s)
        return over(watched.update())

    console = Console()
    with suppress(KeyboardInterrupt):
        follow(run, ended, console, in_place=console.is_terminal)


def follow(run: Path, ended: Callable[[float], bool], console: Console, *, in_place: bool) -> None:
    """Print the explanation again and again, ``in_place`` or one below the other, until the run has ended.

    Args:
        run: the run directory; its journal may appear later.
        ended: waits for these seconds, or until the end of the run, and returns whether it has ended.
        console: the output.
        in_place: a new explanation replaces the last one, so nothing else may print to this terminal.
    """
    explanation = LiveExplanation(run)
    shown = ""
    with Live(console=console, auto_refresh=False, transient=True) if in_place else nullcontext() as view:
        pause_s = 0.0
        while not ended(pause_s):
            began_s = time.monotonic()
            with suppress(JournalError):  # before the first records
                found = explanation.newest()
                text = as_text(found)
                if view is not None:
                    view.update(Text(text), refresh=True)
                elif found.steps and text != shown:
                    console.print(text, end="\n\n", soft_wrap=True)
                shown = text
            every_s = _RENEWED_EVERY_S if in_place else PLAIN_LINE_EVERY_S
            pause_s = max(every_s, _BREATH * (time.monotonic() - began_s))
