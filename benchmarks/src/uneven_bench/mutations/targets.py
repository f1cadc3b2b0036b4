"""All readers of inputs from outside, each with good inputs to mutate: :data:`TARGETS`, one line each.

A target takes an input, or raises an error of uneven's. Any other exception is a fault. ``python -m
uneven_bench.mutations.targets`` is the process in which ``uneven bench mutations`` tries them, so a hang or a leak
harms no other. It prints JSON, a line before and a line after each input.
"""

import contextlib
import importlib
import io
import itertools
import json
import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import uneven
import uneven_bench
from uneven.errors import ConfigError, UnevenError
from uneven.runtime import rundir
from uneven_bench.mutations import make, seeds

Input = bytes | list[str]

TAKEN, REFUSED = "taken", "refused"

MEMORY_BYTES = 1 << 30  # the memory of an input at most


@dataclass(frozen=True)
class MutationTarget:
    """A reader of inputs."""

    name: str
    inputs: Callable[[int], Iterator[Input]]  # mutated ones without end, by a seed
    take: Callable[[Any], None]  # reads one, in an empty working directory

    def verdict(self, given: Input, folder: Path) -> str:
        """Return "taken", "refused", or the fault: an exception and its place. ``folder`` is made and is the working
        directory meanwhile."""
        here, path = Path.cwd(), list(sys.path)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.chdir(folder)
        with Caught() as caught:
            self.take(given)
        os.chdir(here)
        sys.path[:] = path
        if caught.error is None:
            return TAKEN
        if isinstance(caught.error, UnevenError) and str(caught.error):
            return REFUSED
        return _named(caught.error)


class Caught:
    """A context that keeps any exception of its body, except those that end this process."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> bool:
        self.error = error
        return not isinstance(error, KeyboardInterrupt)


def _named(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = [one for one in frames if any(Path(one.filename).is_relative_to(place) for place in _OURS)][-1]
    return f"{type(error).__name__}: {str(error)[:100]} ({Path(last.filename).name}:{last.lineno} in {last.name})"


def _documents(*good: bytes, json: bool = False) -> Callable[[int], Iterator[Input]]:
    return lambda seed: make.documents(seed, good, json)


def _commands(good: Sequence[Sequence[str]]) -> Callable[[int], Iterator[Input]]:
    return lambda seed: make.commands(seed, good)


def _settings(data: bytes) -> None:
    """Read settings, and compare them with those that workers read from the run directory."""
    from uneven.cli.run import layers_of

    Path("uneven.toml").write_bytes(data)
    with contextlib.redirect_stderr(io.StringIO()):
        layers = layers_of({}, None)
    rundir.create(Path("run"), layers)
    assert rundir.load_layers(Path("run")) == {name: one for name, one in layers.items() if one}


def _run_settings(data: bytes) -> None:
    from uneven.policy.core.run_config import merge

    Path(rundir.SETTINGS).write_bytes(data)
    merge(rundir.load_layers(Path()))


def _cluster(data: bytes) -> None:
    """Read a cluster, compare it after writing and reading, and simulate it."""
    from uneven.cluster import files
    from uneven.cluster.pure.describe.write import to_toml

    Path("cluster.toml").write_bytes(data)
    Path(seeds.SERIES).write_text("1.0\n0.5\n", encoding="utf-8")
    spec = files.load("cluster.toml")
    text = to_toml(spec)
    Path("again.toml").write_text(text, encoding="utf-8")
    assert to_toml(files.load("again.toml")) == text
    if len(spec.nodes) <= seeds.PLAYED_NODES:
        quietly(["simulate", "cluster.toml", "--iterations", "3", "--run-dir", "run"])


def _ensemble(data: bytes) -> None:
    from uneven.fleet import ensemble_file

    Path("ensemble.toml").write_bytes(data)
    ensemble_file.read(Path("ensemble.toml"))


def _journal(data: bytes) -> None:
    from uneven import journal

    path = Path("run/journal/rank00000.jsonl")
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    journal.read(Path("run"))
    quietly(["simulate", "--costs", "run", "--iterations", "3", "--no-journal"])


def _session(data: bytes) -> None:
    import uneven

    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return  # no script could have loaded it
    if isinstance(state, dict):
        inner = ("loader", "control", "agreement")
        state = {key: json.dumps(one) if key in inner else one for key, one in state.items()}
    with uneven.Session() as session:
        session.load_state_dict(state)
        for _ in session.loader(seeds.samples(), global_batch_size=8, shuffle=True):
            break


def _fleet_state(data: bytes) -> None:
    from uneven.fleet.engine import fleet_state as engine_state

    Path(engine_state.STATE).write_bytes(data)
    state = engine_state.load(Path(), seeds.FLEET_ASKED)
    engine_state.save(Path(), state)


def _search(data: bytes) -> None:
    """Read a search, and check that its settings lie in its space."""
    from uneven.search import search_file
    from uneven.search.pure.core import SearchCore
    from uneven.search.pure.schedulers import schedulers
    from uneven.search.pure.searchers import searchers
    from uneven.search.pure.space import Space
    from uneven.search.pure.trial_records import SearchTerms
    from uneven.search.search_spec import SearchPlan, part_of

    Path("search.toml").write_bytes(data)
    given = search_file.read(Path("search.toml"))
    terms, plan = part_of(SearchTerms, given), part_of(SearchPlan, given)
    space, scheduler = Space(given["space"]), schedulers.resolve(plan.scheduler)
    core = SearchCore(terms, space, scheduler, searchers.resolve(plan.searcher))
    json.dumps(terms.kept() | plan.kept() | {"space": core.space.to_plain()})
    for t in range(1, 6):
        if (one := core.start()) is not None:
            assert all(domain.holds(one.params[name]) for name, domain in core.space.items()), one.params
            json.dumps(one.params)
            core.reported(one.number, t, 0.5)


def _searched(data: bytes) -> None:
    """Read events, and report, forecast and export them, and begin a search with them."""
    from uneven.search.pure.simulated_search import recorded
    from uneven.search.search_result import SearchResult
    from uneven.search.warm_start import reopened, results_of

    asked, _, events = data.partition(b"\n")
    Path("search.json").write_bytes(asked)
    Path("events.jsonl").write_bytes(events)
    earlier = reopened(Path())
    earlier.core.close()
    result = SearchResult(earlier.core, Path())
    result.report("page.html")
    result.optuna()
    with contextlib.suppress(ConfigError):
        recorded(earlier.events).play(earlier.new_core(2), (1.0, 0.5))
    results_of([Path()], earlier.core.terms, earlier.core.space)


def _study(data: bytes) -> None:
    """Read a study, and compare it with Optuna's reading."""
    import optuna

    from uneven.search.pure.space import Space, integer, loguniform
    from uneven.search.pure.trial_records import SearchTerms
    from uneven.search.warm_start import results_of

    Path("study.db").write_bytes(data)
    space = Space({"lr": loguniform(1e-3, 0.1), "depth": integer(1, 4)})
    found = results_of(["sqlite:///study.db"], SearchTerms(metric="loss", mode="min"), space)
    known = [(one.params, one.value) for one in optuna.load_study(study_name=None, storage="sqlite:///study.db").trials]
    assert all((params, -score) in known for params, score in found)


def _look_up(data: bytes) -> None:
    """Read a request for rows of three tables, and route it to their shards."""
    from uneven.embedding.pure.lookup_request import read_request

    seeds.router().route(read_request(data, seeds.TABLES))


def _command(words: list[str]) -> None:
    seeds.lay_out(Path())
    quietly(words)


def quietly(words: list[str]) -> None:
    """Run the command line with these words, on strict terminals, without starting workers."""
    from uneven.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    complaints = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with idle(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaints):
        try:
            main(words)
        except SystemExit as end:
            if not isinstance(end.code, int):
                raise
            code = end.code
    complaints.seek(0)
    said = complaints.read()
    assert "Traceback" not in said
    if code:
        raise ConfigError(said)


@contextmanager
def idle() -> Iterator[None]:
    """Disable the start of workers, training, measuring and waiting in commands."""
    with ExitStack() as stack:
        for place in _STARTS:
            module, _, name = place.partition(":")
            home = importlib.import_module(module)
            stack.callback(setattr, home, name, getattr(home, name))
            setattr(home, name, _nothing)
        yield


def _nothing(*_: Any, **__: Any) -> Any:
    import typer

    raise typer.Exit


_OURS = tuple(Path(file).parent for file in (uneven.__file__, uneven_bench.__file__) if file)

_STARTS = (
    *(
        "uneven.runtime.launch:run",
        "uneven.runtime.messages.process:ShardKeeper",
        "uneven.cli.emulate:emulate",
        "uneven.fleet:train",
    ),
    *("uneven.journal.report.terminal:watch", "uneven.cli.demo.show:phase", "uneven_bench.harness.show:_measured"),
    *("uneven.cli.doctor:findings", "uneven.cli.doctor:_clean"),
)

TARGETS: tuple[MutationTarget, ...] = (
    MutationTarget("configuration", _documents(seeds.SETTINGS), _settings),
    MutationTarget("run settings", _documents(seeds.RUN_SETTINGS), _run_settings),
    MutationTarget("cluster", _documents(*seeds.CLUSTERS), _cluster),
    MutationTarget("ensemble", _documents(seeds.ENSEMBLE), _ensemble),
    MutationTarget("journal", _documents(seeds.JOURNAL, json=True), _journal),
    MutationTarget("session state", _documents(seeds.SESSION, json=True), _session),
    MutationTarget("fleet state", _documents(seeds.FLEET, json=True), _fleet_state),
    MutationTarget("search", _documents(seeds.SEARCH), _search),
    MutationTarget("searched", _documents(seeds.SEARCHED, json=True), _searched),
    MutationTarget("study of Optuna", lambda seed: make.documents(seed, [seeds.study()]), _study),
    MutationTarget("look-up", _documents(*seeds.LOOK_UPS, json=True), _look_up),
    MutationTarget("command line", _commands(seeds.COMMANDS), _command),
)


@contextmanager
def limited(more_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Limit the memory of this process to ``more_bytes`` beyond the present use."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def warm_up(target: MutationTarget, folder: Path) -> None:
    """Import all modules of a target before the limits."""
    with idle():
        target.verdict(next(target.inputs(0)), folder)


def main(arguments: Sequence[str]) -> None:
    """Print the names of the targets for ``list``; ``TARGET SEED FIRST COUNT`` tries inputs."""
    say = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what targets print
    if list(arguments) == ["list"]:
        print(json.dumps([one.name for one in TARGETS]), file=say)
        return
    name, seed, first, count = arguments[0], *map(int, arguments[1:])
    target = next(one for one in TARGETS if one.name == name)
    with tempfile.TemporaryDirectory(prefix="uneven-") as place:
        folder = Path(place, "of", "one")  # two levels, so that a path out of the folder is still in ours
        warm_up(target, folder)
        with limited():
            for number, given in enumerate(itertools.islice(target.inputs(seed), first, first + count), first):
                print(json.dumps({"begun": number}), file=say)
                print(json.dumps({"ended": number, "verdict": target.verdict(given, folder)}), file=say)


if __name__ == "__main__":
    main(sys.argv[1:])
