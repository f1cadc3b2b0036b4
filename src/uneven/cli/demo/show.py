"""The two phases of the demo and their comparison."""

from dataclasses import dataclass
from pathlib import Path

from uneven import journal
from uneven.cli.demo.demo_worker import GLOBAL_BATCH
from uneven.cluster.virtual.datasets import ImageData
from uneven.errors import ConfigError, LaunchError
from uneven.journal.pure.summary import Summary
from uneven.journal.report import comparison, html, page, terminal
from uneven.journal.report.console import Console, columns
from uneven.policy.core.records import ScalarRecord, StepRecord
from uneven.runtime import launch
from uneven.runtime.installed import need
from uneven.runtime.launch import Launch

SHARES = (0.6, 0.4, 0.2, 0.1)
WAYS = {"DDP": "plain", "uneven": "balanced"}
SETTLE = 12
"""The first iterations, which the summary omits: uneven starts with equal batches and measures speeds first. The chart
of the time per iteration shows them."""

LEAST = SETTLE + 8  # the fewest iterations for a meaningful summary


def check(data: ImageData, epochs: int) -> None:
    """Check that there are enough iterations to summarize. Raises ConfigError if not."""
    each = len(data.train) // GLOBAL_BATCH
    if epochs * each < LEAST:
        raise ConfigError(
            f"--epochs {epochs}: {epochs * each} iterations, and the first {SETTLE} are not counted; "
            f"with {data.name} give at least --epochs {-(-LEAST // each)}"
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """The result of one way to train."""

    name: str
    run: Path
    summary: Summary
    accuracy: float
    wall_s: float


def phase(name: str, run: Path, data: str, epochs: int, console: Console) -> Phase:
    """Train one way on the four workers, with a live view. Raises LaunchError with a dead worker's output."""
    what = Launch(
        target=("uneven.cli.demo.demo_worker", WAYS[name], str(run), data, str(epochs)),
        module=True,
        nproc=str(len(SHARES)),
        shares=SHARES,
        wait_ready=True,
        throttle_period_s=0.01,
    )
    log = run / "output.txt"
    with launch.start(what, run_directory=run, output=log) as workers:
        terminal.watch(run, console=console, stop=lambda: workers.wait(0.0) is not None)
        ending = workers.wait(60.0)
    if ending is None:
        raise LaunchError(f"the {name} run has not ended within 60 s after its training")
    if ending.code:
        raise LaunchError(f"a worker of the {name} run died:\n{log.read_text()[-3000:]}", abs(ending.code))
    return _read(name, run)


def _read(name: str, run: Path) -> Phase:
    records = list(journal.read(run).records())
    iterations = [one for one in journal.iterations(records) if one.iteration >= SETTLE]
    accuracies = [one.value for one in records if isinstance(one, ScalarRecord) and one.name == "accuracy"]
    ends_s = [one.ended_at_s for one in records if isinstance(one, StepRecord)]
    return Phase(name, run, journal.summarize(iterations), accuracies[-1], max(ends_s) - min(ends_s))


_COLUMNS = ("", "per iteration", "samples/s", "waiting", "accuracy", "took", "speed-up", "of limit")


def rows(phases: list[Phase]) -> list[tuple[str, ...]]:
    first = phases[0].summary
    return [
        (
            one.name,
            f"{one.summary.iteration_s * 1e3:.0f} ms",
            f"{one.summary.samples_per_s:,.0f}",
            f"{one.summary.wait_share:.0%}",
            f"{one.accuracy:.1%}",
            f"{one.wall_s:.0f} s",
            f"{first.iteration_s / one.summary.iteration_s:.2f} ×",
            f"{one.summary.fraction_of_limit:.2f}",
        )
        for one in phases
    ]


def show(phases: list[Phase], report: Path, console: Console) -> None:
    """Print the table, and write the page to ``report``."""
    shares = ", ".join(map(str, SHARES))
    title = f"The same training on workers with {shares} of a core"
    console.print(columns(_COLUMNS, rows(phases), title=title, collapse_padding=True, pad_edge=False))
    console.print(
        "Accuracy is on held-out images. Speed-up is relative to DDP. The limit is an iteration in which all workers "
        "finish together and communication is free."
    )
    lead = (
        f"Four local workers with {shares} of a core train one network on the same samples: "
        f"first with equal batches under DistributedDataParallel, then with batches that follow each worker's "
        f"speed. Medians leave out the first {SETTLE} iterations; the pictures show them."
    )
    try:
        need("report", "plotly")
    except ConfigError as error:
        console.print(f"No HTML report: {error}")
        return
    text = comparison.comparison(
        {one.name: one.run for one in phases}, page.PageTable(_COLUMNS, rows(phases)), title="uneven demo", lead=lead
    )
    html.write(text, report)
    console.print(f"Report: {report}")
