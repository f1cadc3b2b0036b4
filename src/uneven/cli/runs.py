"""The command ``uneven runs``: the runs in a folder."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

from uneven.cli import answer
from uneven.cli.options import argument
from uneven.errors import JournalError, access
from uneven.policy.core.printable import printable

_END_BYTES = 50_000  # of all journals of a run: the newest iterations, so that a long list takes no time


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One row of the list."""

    name: str
    date: str  # of its start, as year-month-day hour:minute
    workers: int
    iterations: int
    state: str  # see :func:`uneven.journal.report.terminal.condition`; of a search or fleet its kind
    next: str  # the command to type


def runs(
    folder: Annotated[Path, argument("[FOLDER]", "Folder of the runs. [default: ./runs]", readable=False)] = Path(
        "runs"
    ),
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """List the runs in a folder, the newest first: date, workers, iterations, state, and the next command.

    Searches and fleets are listed, too.

    \b
    Examples:
      uneven runs
      uneven runs /shared/runs --format json
    """
    with access(f"look into {folder}", JournalError):
        if not folder.is_dir():
            raise JournalError(f"{folder} is not a folder: name one with runs, or start one with `uneven run SCRIPT`")
        rows = [_listed(path) for path in folder.iterdir() if path.is_dir()]
    found = sorted(filter(None, rows), key=lambda one: (one.date, one.name), reverse=True)
    if form is answer.Form.JSON:
        answer.write(found)
        return
    if not found:
        print(printable(f"no run in {folder}"))
        return
    rows_of_text = [("run", "date", "workers", "iterations", "state", "next")]
    rows_of_text += [
        (one.name, one.date, f"{one.workers or '–'}", f"{one.iterations or '–'}", one.state, one.next) for one in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows_of_text, strict=True)]
    for row in rows_of_text:  # a line that is wider than the terminal is not cut: its end is the command
        print(printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()))


def _listed(path: Path) -> ListedRun | None:
    """Return a folder as a row; None if it is not a run."""
    from uneven.journal.reader import Follower, rank_paths
    from uneven.journal.report import terminal
    from uneven.journal.report.pure.live_state import RunProgress
    from uneven.runtime.rundir import SETTINGS

    for file, kind, command in (
        ("events.jsonl", "search", f"uneven search show {quote(str(path))}"),
        ("state.json", "fleet", f"uneven fleet show {quote(path.name)}.toml"),
    ):
        if (path / file).is_file():
            return ListedRun(path.name, _date((path / file).stat().st_ctime), 0, 0, kind, command)
    state, ranks = RunProgress(), rank_paths(path)
    if not ranks and not (path / SETTINGS).is_file():
        return None
    try:
        state.feed(Follower(path, _END_BYTES // max(1, len(ranks))).poll())
    except JournalError:
        return ListedRun(path.name, _date(path.stat().st_mtime), len(ranks), 0, "damaged", "")
    # The records of a simulated run have virtual times.
    real_s = [one.started_at_s for one in state.runs.values() if one.world != "simulated"]
    began_s = min(real_s, default=path.stat().st_mtime)
    condition = terminal.condition(state)
    command = "report" if condition in ("finished", "stopped") else "watch"
    iterations = 0 if state.last is None else state.last.iteration + 1
    following = f"uneven {command} {quote(str(path))}"
    return ListedRun(path.name, _date(began_s), len(ranks), iterations, condition, following)


def _date(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M}"
