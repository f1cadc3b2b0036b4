"""The commands ``uneven focus …``: find objects in recorded video."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uneven.cli import answer
from uneven.cli.help import first, group, verb
from uneven.cli.options import Engine, argument, option, switch
from uneven.errors import ConfigError, access
from uneven.policy.core.printable import printable
from uneven.policy.core.tables import located

if TYPE_CHECKING:
    from uneven.focus.query import Embedding, VideoIndex
    from uneven.focus.start import Update
    from uneven.focus.truth import Truth

app = group("Find things in recorded video: cheap at ingest, exact at query.")

Folder = Annotated[Path, argument("INDEX", "Folder that `uneven focus ingest` has written.")]
TruthName = Annotated[str, option("MODULE:NAME", "Expensive network, or a function that returns it.", "--truth")]
Side = Annotated[int, option("PIXELS", "Side of the square images for the network.", "--side")]


@verb(app, "ingest")
@first(
    *("--truth", "--into", "--recall", "--precision", "--policy"),
    *("--per-s", "--sample-s", "--follow", "--engine", "--cores"),
)
def ingest(
    videos: Annotated[list[str], argument("VIDEO…", "Files, or addresses such as rtsp://CAMERA.")],
    truth: TruthName,
    into: Annotated[Path, option("INDEX", "Folder for the index.")] = Path("index"),
    recall: Annotated[float, option("SHARE", "Share of the frames with a class that a query must return.")] = 0.99,
    precision: Annotated[float, option("SHARE", "Share of the returned frames that must show the class.")] = 0.99,
    policy: Annotated[str, option("balance|opt-ingest|opt-query", "Goal of the settings.")] = "balance",
    confidence: Annotated[
        float,
        option(
            "SHARE", "Required confidence that the sample supports the settings; 0 trusts the sample and costs less."
        ),
    ] = 0.5,
    per_s: Annotated[float, option("N", "Frames to examine in each second of video.", "--per-s")] = 1.0,
    sample_s: Annotated[
        float, option("SECONDS", "Length of the video that chooses the settings.", "--sample-s")
    ] = 1800,
    same: Annotated[
        float | None, option("LEVELS", "Examine an object once if it changes less than this between frames, of 255.")
    ] = None,
    starts: Annotated[str | None, option("HH:MM", "Time of day when the videos start.")] = None,
    follow: Annotated[bool, switch("Follow files that still grow.", "--follow")] = False,
    side: Side = 64,
    engine: Engine = "local",
    cores: Annotated[int | None, option("N", "Number of cores for ingest. [default: all]")] = None,
) -> None:
    """Index videos, so that they can be searched for objects.

    The expensive network labels a sample; cheap networks are trained on it; the cheapest setting that reaches the
    targets indexes the video. After an interruption, the same command continues.

    Exit codes: 0 success; 2 wrong setting, or another error; 130 stopped with Ctrl-C.

    \b
    Examples:
      uneven focus ingest cam1.mp4 cam2.mp4 --truth mymodels:detector --into monday
      uneven focus ingest rtsp://10.0.0.7/cam1 --truth mymodels:detector --sample-s 600
      uneven focus ingest cam*.mp4 --truth mymodels:detector --engine ray --into /shared/monday
    """
    from uneven import focus
    from uneven.focus.start import policy_named

    made = _truth(truth, side)
    sources = [focus.Video(video, follow=follow) for video in videos]
    wanted = focus.Wanted(
        recall=recall, precision=precision, policy=policy_named(policy), confidence=confidence, sample_s=sample_s
    )
    options = focus.IngestOptions(per_s=per_s, same=same)
    try:
        index = focus.ingest(
            sources,
            made,
            into=into,
            starts=starts,
            wanted=wanted,
            options=options,
            show=_show(),
            engine=engine,
            devices=cores,
        )
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; the same command continues from the index in {into}", err=True)
        raise typer.Exit(130) from None
    print(printable(_summary(index)))


@verb(app, "query")
def query(
    index: Folder,
    name: Annotated[str, argument("CLASS", "Class to find; with --words, a description.")],
    truth: Annotated[str | None, option("MODULE:NAME", "Expensive network of the ingest.")] = None,
    between: Annotated[str | None, option("08:00-09:00", "Time of day, or seconds (10-20).")] = None,
    stream: Annotated[list[str] | None, option("NAME", "Search this stream only. Repeatable.")] = None,
    words: Annotated[
        str | None, option("MODULE:NAME", "A focus.Embedding, which compares pictures with texts.")
    ] = None,
    most: Annotated[int, option("N", "With --words: number of groups of objects, nearest first.", min=1)] = 20,
    side: Side = 64,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Print the places of a class as they are found.

    Each place is a line; with --format json, each line is an object.

    \b
    Examples:
      uneven focus query monday car --truth mymodels:detector --between 08:00-09:00
      uneven focus query monday car        from the results of earlier queries
      uneven focus query monday car --format json
      uneven focus query monday "a red car" --words mymodels:clip
    """
    from uneven import focus

    opened = focus.load_index(index, None if truth is None else _truth(truth, side))
    if form is answer.Form.TEXT:
        print("stream\tframe\ttime_s\tbox\tconfidence")
    count, between_ = 0, _between(between)
    if words is None:
        hits = opened.query(name, between_, stream)
    else:
        hits = opened.search(name, _embedding(words), most=most, between=between_, streams=stream)
    for hit in hits:
        count += 1
        if form is answer.Form.JSON:
            answer.write(hit)
            continue
        # Flushed line by line: results stream, and a pipe must see each one immediately.
        box = ",".join(map(str, hit.box))
        print(printable(f"{hit.stream}\t{hit.frame}\t{hit.time_s:.2f}\t{box}\t{hit.confidence:.3f}"), flush=True)
    cost = opened.cost
    if words is not None:
        typer.echo(f"{count} objects; {cost.embedded} centroids embedded now", err=True)
        return
    typer.echo(
        f"{count} objects; {cost.candidates} clusters may contain the class: the truth network checked {cost.checked}, "
        f"{cost.alike} are like one of these, {cost.known} were known, {cost.sure} are certain",
        err=True,
    )


@verb(app, "tune")
def tune(
    index: Folder,
    video: Annotated[str, argument("VIDEO", "Fresh video of a stream of the index.")],
    truth: TruthName,
    sample_s: Annotated[float, option("SECONDS", "Length of the video to examine.", "--sample-s")] = 1800,
    check: Annotated[bool, switch("Check the targets only, change no settings.", "--check")] = False,
    side: Side = 64,
) -> None:
    """Check a stream's settings on fresh video.

    If the settings miss a target, the command chooses new ones; it rebuilds nothing.

    \b
    Example:
      uneven focus tune monday tuesday/cam1.mp4 --truth mymodels:detector
    """
    from uneven import focus

    opened = focus.load_index(index, _truth(truth, side))
    source = focus.Video(video)
    found = focus.drifted(opened, source, sample_s)
    print(printable(str(found)))
    if found.missed and not check:
        chosen = focus.retune(opened, source, focus.Wanted(sample_s=sample_s))
        print(printable(f"new settings: {chosen.point.setting.network}, K={chosen.point.setting.k}"))


@verb(app, "watch")
def watch(index: Folder, every: Annotated[float, option("SECONDS", "Time between updates.", min=0.1)] = 1.0) -> None:
    """Show the progress of an ingest.

    The view shows the backlog, objects per second, clusters, and the cost so far. Ctrl-C ends the view.

    \b
    Example:
      uneven focus watch monday
    """
    from rich.live import Live

    from uneven import focus
    from uneven.focus.supervise import over, table

    opened = focus.load_index(index)
    with Live(table(opened), refresh_per_second=10) as live, suppress(KeyboardInterrupt):
        while not over(opened):
            time.sleep(every)  # an index sends no event when it grows
            live.update(table(opened))


@verb(app, "report")
def report(
    index: Folder,
    page: Annotated[Path, option("FILE", "HTML file to write.", "--report")] = Path("focus.html"),
    stream: Annotated[str | None, option("NAME", "Stream. [default: the first]")] = None,
    name: Annotated[list[str] | None, option("CLASS", "Show this class only. Repeatable.", "--class")] = None,
) -> None:
    """Write an HTML report of an index.

    It shows the choice of settings, the cost of each step, and pictures of the found objects.

    \b
    Example:
      uneven focus report monday --report monday.html
    """
    from uneven import focus
    from uneven.focus import focus_report

    opened = focus.load_index(index)
    with access(f"write the report {page}"):
        text = focus_report.page(opened, stream or next(iter(opened.streams)), name or ())
        page.write_text(text, encoding="utf-8")
    print(page)


def _named(name: str, option: str) -> Any:
    # Names refer to the user's modules, which are in the working directory.
    from uneven.fleet.ensemble_file import named

    sys.path.insert(0, str(Path.cwd()))
    with located(option):
        return named(name)


def _embedding(name: str) -> "Embedding":
    from uneven.focus.query import Embedding

    made = _named(name, "--words")
    found = made() if callable(made) else made
    if not isinstance(found, Embedding):
        raise ConfigError(
            f"--words {name} is a {type(found).__name__}: give a focus.Embedding, or a function that returns one"
        )
    return found


def _truth(name: str, side: int) -> "Truth":
    from uneven.focus.truth import Truth

    made = _named(name, "--truth")
    if isinstance(made, Truth):
        return made
    if not callable(made):
        raise ConfigError(
            f"--truth {name} is of type {type(made).__name__}: give a Truth, a network, or a function that returns one"
        )
    # An object with classes is a network; a class or a function makes one.
    network = made if hasattr(made, "classes") and not isinstance(made, type) else made()
    return network if isinstance(network, Truth) else Truth(network, side=side)


def _between(text: str | None) -> tuple[float | str, float | str] | None:
    if text is None:
        return None
    low, dash, high = text.partition("-")
    if not (low and dash and high):
        raise ConfigError(f"--between {text}: give FROM-UNTIL, such as 08:00-09:00, or 10-20 for seconds")
    return _moment(low), _moment(high)


def _moment(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _show() -> "Callable[[Update], None]":
    """Return a function that prints a line for each step, and one for each stream every few seconds."""
    last_s: dict[str, float] = {}

    def show(update: "Update") -> None:
        if update.tuned is not None:
            point = update.tuned.point
            typer.echo(
                f"{update.stream}: {point.setting.network}, K={point.setting.k}; the truth network alone "
                f"needs {1 / point.ingest:.0f} x the work at ingest, {1 / max(point.query, 1e-9):.0f} x at a query",
                err=True,
            )
        elif update.reason:
            typer.echo(f"failed: {printable(update.reason)}; the others continue", err=True)
        elif update.counts is None:
            typer.echo(f"{update.stream}: choosing the settings", err=True)
        elif update.counts.done or time.monotonic() - last_s.get(update.stream, -10.0) > 5.0:
            last_s[update.stream] = time.monotonic()
            counts = update.counts
            dropped = f", {counts.dropped} frames dropped" if counts.dropped else ""
            typer.echo(
                f"{update.stream}: {counts.time_s:.0f} s of video, {counts.objects} objects in "
                f"{counts.clusters} clusters{dropped}",
                err=True,
            )

    return show


def _summary(index: "VideoIndex") -> str:
    lines = []
    for name, store in index.streams.items():
        counts, _ = store.progress()
        lines.append(f"{name}: {counts['frames']} frames, {counts['objects']} objects, {counts['clusters']} clusters")
    return "\n".join([*lines, f"next: uneven focus query {index.folder} CLASS --truth MODULE:NAME"])
