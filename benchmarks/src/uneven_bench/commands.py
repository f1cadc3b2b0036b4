"""``uneven bench``."""

from __future__ import annotations

import json as json_module
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

BENCHES = {
    "lb-bsp": "uneven_bench.lb_bsp.bench",
    "closed-loop": "uneven_bench.closed_loop",
    "predictors": "uneven_bench.predictors.bench",
    "balancers": "uneven_bench.balancers.bench",
    "defaults": "uneven_bench.defaults",
    "rivals": "uneven_bench.rivals.bench",
    "overhead": "uneven_bench.overhead",
    "split": "uneven_bench.split",
    "threads": "uneven_bench.threads",
    "heap": "uneven_bench.heap.bench",
    "worlds": "uneven_bench.worlds.bench",
    "server": "uneven_bench.server.bench",
    "sync": "uneven_bench.sync.bench",
    "fleet": "uneven_bench.fleet.bench",
    "fleet-plan": "uneven_bench.fleet_plan.bench",
    "fleet-kill": "uneven_bench.fleet.kill",
    "mutations": "uneven_bench.mutations.bench",
    "faults": "uneven_bench.faults.bench",
}
SWEEPS = {"predictors": "uneven_bench.predictors.sweep"}
RECORDERS = ("predictors",)
ONLY_FOR = {
    "case": ("lb-bsp", "sync"),
    "report": ("fleet-plan",),
    "seed": ("faults",),
    "only": ("faults",),
}
"""Option → the benches that have it."""

_WIDTH = 112
"""Of what is printed to no terminal; the widest table takes 104."""


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(BENCHES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    data: Annotated[
        str, typer.Option("--data", help="digits (ships with scikit-learn) or fashion-mnist (from UNEVEN_DATA).")
    ] = "digits",
    sweep: Annotated[bool, typer.Option("--sweep", help="Try options instead (predictors only).")] = False,
    case: Annotated[
        str | None, typer.Option("--case", metavar="NAME", help="One case alone (lb-bsp, sync; see below).")
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Record runs and keep them there (predictors only).")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Use runs recorded before (predictors only).")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write pictures, one HTML file (fleet-plan only).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Draw other faults (faults only).")] = None,
    only: Annotated[
        int | None, typer.Option("--only", metavar="K", help="Play the K-th fault of a seed alone (faults only).")
    ] = None,
) -> None:
    """Measure a claim on this machine.

    Everything that is compared runs interleaved in one run, so that a drift of the machine hits all alike;
    ratios are medians over the rounds, with the middle half in brackets. A column in which we lose is shown.

    \b
    lb-bsp       real workers on shares of a core, and every way to deal with
                 them: DDP, static shares, DBS, OmniLearn, LBB, FlexRR, backup
                 workers, accumulation, ours, and an oracle that knows the next
                 shares. Cases: steady, step, traces, eight, equal, pair (equal
                 workers, DDP and ours alone), cut (as root), svm, resnet; real
                 data where UNEVEN_DATA has it. Fifty minutes, --case NAME nine at
                 most; --quick, which measures steady and pair without the
                 rivals, a minute and a half.
    closed-loop  predictors compared in virtual time, where the truth is known.
                 Seconds.
    predictors   predictors compared on traces, made-up workers and, as root,
                 emulated runs with real rivals: errors, and the iteration times
                 that they lead to. --record DIR keeps the runs, --runs DIR uses
                 kept ones, --sweep tries options instead. Ten minutes, of which
                 five record; --quick, which does not, a minute; --sweep ten.
    balancers    balancers compared in virtual time, where the costs are known:
                 saturation, constant parts, memory limits, a cut link. A minute.
    defaults     the candidates for the default balancer and predictor in real
                 runs on emulated clusters, as root. An hour; --quick, 20 min.
    rivals       rivals from the literature and ours in virtual time, against an
                 oracle. Under a minute.
    overhead     what measuring and deciding add to an iteration of 4 and 8 real
                 workers, and one decision for up to 10,000. Two minutes.
    split        how long deciding takes for 10,000 workers. Seconds.
    threads      one worker's replica trained by one thread or by two, without a
                 lock: samples/s, and the loss. Five minutes, --quick half a one.
    heap         what it brings to keep the memory that a step frees for the next
                 one. Two minutes, --quick one.
    worlds       described clusters, emulated with real processes and simulated:
                 do both say the same? As root, with links. Twenty minutes,
                 --quick ten.
    server       the shared copy in shards: push and pull against a plain ZeroMQ
                 copy, shards that are killed, 64 workers for ten minutes, a
                 million malformed messages. Fourteen minutes, --quick one.
    sync         policies in the foreground, in the shadow and through a shared
                 copy against DDP with its hooks, post-local SGD, torchft where it
                 is installed, and no exchange at all, on emulated links, as root:
                 samples/s, losses, sync gap, bytes. Cases: fast, 100mbit, 20mbit,
                 straggler, both; each with -2, -4, -8 workers, and then with
                 -shadows, which are alone there; twins-4. Hours, --case NAME
                 twenty minutes, -shadows eight, with --quick eight and four;
                 --quick six.
    fleet        six networks trained on shared data under FLEET, and in the ways
                 without it: one pipeline each, random subsets, one after the
                 other, trials of Ray Tune, TensorSocket, both where installed.
                 Half an hour, --quick three minutes.
    fleet-plan   100 members in virtual time under FLEET and its rivals, small
                 ensembles against the best rounds there are, and how long
                 planning takes; --report FILE draws plans. Half a minute.
    fleet-kill   trainings of an ensemble in which the run, a member or a
                 preprocessor gets kill -9 at ten random moments: is everybody
                 trained in the end, and nothing twice? Three minutes, --quick one.
    mutations    6,400 inputs that went wrong (clusters, settings, ensembles,
                 journals, states, command lines): is each one taken, or refused
                 with one message? Four minutes, --quick one.
    faults       200 faults drawn from --seed N: workers, launchers and shards of
                 runs under all policies are killed, stopped, made to fail. Does
                 the run end in time, name the culprit, leave nothing over, and
                 does a resumed one use every sample once? --only K plays one of
                 them again. A quarter of an hour, --quick two minutes.

    \b
    Examples:
      uneven bench split
      uneven bench lb-bsp --quick
      uneven bench lb-bsp --case traces
      uneven bench predictors --sweep
      uneven bench predictors --record runs/predictors
      uneven bench lb-bsp --json | tail -n 1 > lb-bsp.json
      uneven bench faults --seed 28 --only 17
    """
    import importlib

    from uneven.data.datasets import images
    from uneven.errors import ConfigError, UnknownNameError

    if name not in BENCHES:
        raise UnknownNameError("bench", name, BENCHES)
    if sweep and name not in SWEEPS:
        raise ConfigError(f"bench {name} has no --sweep; these have: {', '.join(SWEEPS)}")
    folders = {key: folder for key, folder in (("record", record), ("runs", runs)) if folder is not None}
    if folders and (sweep or name not in RECORDERS):
        raise ConfigError(f"bench {name}{' --sweep' * sweep} records no runs: leave out --{next(iter(folders))}")
    if len(folders) > 1:
        raise ConfigError("--record and --runs: give one, to record runs or to use recorded ones")
    given = {"case": case, "report": report, "seed": seed, "only": only}
    more = {key: value for key, value in given.items() if value is not None}
    for key in more:
        if name not in ONLY_FOR[key]:
            raise ConfigError(f"bench {name} has no --{key}; these have: {', '.join(ONLY_FOR[key])}")
    module = importlib.import_module(SWEEPS[name] if sweep else BENCHES[name])
    images(data)  # a data set that is not there is said here, not by a worker
    result = _run(module, quick, data, {**folders, **more})
    from uneven.report.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for table in module.tables(result):
        console.print(table)
    if json:
        print(json_module.dumps(result))


def _run(module: Any, quick: bool, data: str, more: dict[str, Any]) -> dict[str, Any]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from uneven.report.console import Console

    state = TextColumn("{task.fields[state]}", markup=False)
    phase = TextColumn("{task.description}", markup=False)
    columns = (phase, BarColumn(), state, TimeElapsedColumn(), TimeRemainingColumn())
    with _ended_when_told(), Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(phase: str, state: str, done: float) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=1.0, state="")
            bars.update(tasks[phase], completed=done, state=state)

        result: dict[str, Any] = module.run(quick, data, progress, **more)
        return result


@contextmanager
def _ended_when_told() -> Iterator[None]:
    """Inside, SIGTERM ends what a bench has started with it, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
