"""``uneven bench NAME``: one command for each bench, which imports its modules only when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from uneven.errors import ConfigError, UnknownNameError
from uneven_bench.far_sites.command import far_sites
from uneven_bench.focus.command import focus
from uneven_bench.gpu.command import gpu
from uneven_bench.graph.command import graph
from uneven_bench.preconditioners.command import preconditioners
from uneven_bench.recommendation.command import recommendation

EXAMPLES = """\
\b
Examples:
  uneven bench rivals
  uneven bench lb-bsp --quick
  uneven bench lb-bsp --case traces
  uneven bench predictors --record runs/predictors
  uneven bench lb-bsp --json | tail -n 1 > lb-bsp.json
  uneven bench faults --seed 28 --only 17
"""


class Benches(TyperGroup):
    """A group of commands that raises on an unknown name, and offers the nearest one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # of click, or of the copy of it that newer typers have
        """Return the bench. Raises UnknownNameError: there is none of this name."""
        if cmd_name not in self.commands:
            raise UnknownNameError("bench", cmd_name, self.commands)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Benches,
    no_args_is_help=True,
    epilog=EXAMPLES,
    help="Measure a claim on this machine.\n\n"
    "Everything that is compared runs interleaved in one run, so that a drift of the machine hits all alike; ratios "
    "are medians over the rounds, with the middle half in brackets. A column in which we lose is shown. "
    "`uneven bench NAME --help` says what a bench compares and how long it takes.",
)

Quick = Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Case = Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")]
Data = Annotated[str, typer.Option("--data", help="digits (comes with uneven) or fashion-mnist (from UNEVEN_DATA).")]


def _find(data: str) -> None:
    """Check that the data set exists, so that the command raises and not a worker."""
    from uneven.cluster.virtual.datasets import images

    images(data)


@app.command("lb-bsp")
def lb_bsp(quick: Quick = False, json: Json = False, data: Data = "digits", case: Case = None) -> None:
    """Balanced batches against DDP, rivals and an oracle.

    Real workers on shares of a core, and every way to deal with them: DDP, static shares, DBS, OmniLearn, LBB, FlexRR,
    backup workers, accumulation, ours, and an oracle that knows the next shares.

    Cases: steady, step, traces, eight, equal, pair (equal workers, DDP and ours alone), cut (as root), svm, resnet;
    real data where UNEVEN_DATA has it.

    Fifty minutes, --case NAME nine at most; --quick, which measures steady and pair without the rivals, a minute and a
    half.
    """
    from uneven_bench.lb_bsp.bench import run, tables
    from uneven_bench.show import show

    _find(data)
    show(lambda told: run(quick, data, told, case=case), tables, json)


@app.command("predictors")
def predictors(
    quick: Quick = False,
    json: Json = False,
    data: Data = "digits",
    record: Annotated[Path | None, typer.Option("--record", metavar="DIR", help="Record runs; keep them.")] = None,
    runs: Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Use runs recorded before.")] = None,
) -> None:
    """Errors of predictors, and the times they lead to.

    On traces, made-up workers and, as root, emulated runs with real rivals. --record DIR keeps the runs, --runs DIR
    uses kept ones.

    Ten minutes, of which five record; --quick, which does not, a minute.
    """
    from uneven_bench.predictors.bench import run, tables
    from uneven_bench.show import show

    if record and runs:
        raise ConfigError("--record and --runs: give one, to record runs or to use recorded ones")
    _find(data)
    show(lambda told: run(quick, data, told, record=record, runs=runs), tables, json)


@app.command("balancers")
def balancers(quick: Quick = False, json: Json = False) -> None:
    """Balancers in virtual time, on known costs.

    Saturation, constant parts, memory limits, a cut link. A minute.
    """
    from uneven_bench.balancers.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told), tables, json)


@app.command("rivals")
def rivals(quick: Quick = False, json: Json = False) -> None:
    """Rivals from the literature and ours in virtual time.

    Against an oracle. Under a minute.
    """
    from uneven_bench.rivals.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told), tables, json)


@app.command("overhead")
def overhead(quick: Quick = False, json: Json = False, data: Data = "digits") -> None:
    """The cost of measuring and deciding in an iteration.

    In one of 4 and 8 real workers, and for one decision for up to 10,000. Two minutes.
    """
    from uneven_bench.overhead import run, tables
    from uneven_bench.show import show

    _find(data)
    show(lambda told: run(quick, data, told), tables, json)


@app.command("loops")
def loops(quick: Quick = False, json: Json = False, case: Case = None) -> None:
    """Samples that cost unequally, and evaluations, on four unequal workers.

    Cases: packed and padded (speeches of Shakespeare, from UNEVEN_DATA), evaluate. Six minutes.
    """
    from uneven_bench.loops.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, case), tables, json)


@app.command("flicker")
def flicker(quick: Quick = False, json: Json = False) -> None:
    """Iterations that workers finish together under load that changes every 25, 5 or 2 iterations, in virtual time.

    On recorded machine use if UNEVEN_DATA is set. Three minutes.
    """
    from uneven_bench.flicker.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told), tables, json)


@app.command("threads")
def threads(quick: Quick = False, json: Json = False, data: Data = "digits") -> None:
    """One replica trained by one thread, or by two.

    Without a lock: samples/s, and the loss. Five minutes, --quick half a one.
    """
    from uneven_bench.show import show
    from uneven_bench.threads import run, tables

    _find(data)
    show(lambda told: run(quick, data, told), tables, json)


@app.command("worlds")
def worlds(
    quick: Quick = False,
    json: Json = False,
    data: Data = "digits",
    case: Case = None,
    width: Annotated[int | None, typer.Option("--width", min=1, metavar="N", help="Channels: 64, quickly 32")] = None,
) -> None:
    """Described clusters, emulated and simulated: do both agree?

    Emulated with real processes, as root, with links. Twenty-five minutes, --case NAME three; --quick, which plays
    steady shares unless a case is named, two and a half.
    """
    from uneven_bench.show import show
    from uneven_bench.worlds.bench import run, tables

    _find(data)
    show(lambda told: run(quick, data, told, width=width, case=case), tables, json)


@app.command("server")
def server(quick: Quick = False, json: Json = False, data: Data = "digits") -> None:
    """The parameter server in shards, against a plain ZeroMQ one.

    Push and pull, shards that are killed, 64 workers for ten minutes, a million malformed messages. Fourteen minutes,
    --quick one.
    """
    from uneven_bench.server.bench import run, tables
    from uneven_bench.show import show

    _find(data)
    show(lambda told: run(quick, data, told), tables, json)


@app.command("sync")
def sync(quick: Quick = False, json: Json = False, data: Data = "digits", case: Case = None) -> None:
    """Policies on slow links, against DDP and its hooks.

    In the foreground, in the shadow and through a parameter server, against DDP with its hooks, post-local SGD, torchft
    where it is installed, and no exchange at all, on emulated links, as root: samples/s, losses, sync gap, bytes.

    Cases: fast, 100mbit, 20mbit, straggler, both; each with -2, -4, -8 workers, and then with -shadows, which are alone
    there; twins-4.

    Hours, --case NAME twenty minutes, -shadows eight, with --quick eight and four; --quick six.
    """
    from uneven_bench.show import show
    from uneven_bench.sync.bench import run, tables

    _find(data)
    show(lambda told: run(quick, data, told, case=case), tables, json)


@app.command("fleet")
def fleet(quick: Quick = False, json: Json = False, data: Data = "digits") -> None:
    """Six networks trained on shared data, under FLEET or without.

    Without it: one pipeline each, random subsets, one after the other, trials of Ray Tune, TensorSocket, both where
    installed. Half an hour, --quick three minutes.
    """
    from uneven_bench.fleet.bench import run, tables
    from uneven_bench.show import show

    _find(data)
    show(lambda told: run(quick, data, told), tables, json)


@app.command("search")
def search(
    quick: Quick = False,
    json: Json = False,
    data: Data = "fashion-mnist" if "UNEVEN_DATA" in os.environ else "digits",
    case: Annotated[str | None, typer.Option("--case", help="overhead, decisions, real, unequal or teams.")] = None,
) -> None:
    """A search of settings against Ray Tune and Optuna.

    The overhead of a trivial trial, decisions on a table of real accuracies, a real search with shared data and
    without, devices with shares of .6, .4, .2 and .1, and such devices that help each other. The table needs
    UNEVEN_DATA. Ten minutes, --quick one and a half.
    """
    from uneven_bench.search.bench import CASES, run, tables
    from uneven_bench.show import show

    if case not in (None, *CASES):
        raise UnknownNameError("case", case, CASES)
    _find(data)
    show(lambda told: run(quick, data, told, case), tables, json)


@app.command("search-kill")
def search_kill(quick: Quick = False, json: Json = False) -> None:
    """Searches in which processes are killed.

    The search, or one of its processes, gets kill -9 at a random moment, twenty times: does it end as the undisturbed
    one, and is nothing trained twice? Six minutes, --quick one and a half.
    """
    from uneven_bench.search.kill import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told), tables, json)


@app.command("fleet-plan")
def fleet_plan(
    quick: Quick = False,
    json: Json = False,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Draw plans: one HTML file.")] = None,
) -> None:
    """100 members in virtual time under FLEET and its rivals.

    Also small ensembles against the best rounds there are, and how long planning takes. Half a minute.
    """
    from uneven_bench.fleet_plan.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, report), tables, json)


@app.command("fleet-kill")
def fleet_kill(quick: Quick = False, json: Json = False, data: Data = "digits") -> None:
    """Trainings of an ensemble in which processes are killed.

    The run, a member or a preprocessor gets kill -9 at ten random moments: does each member end trained, and nothing
    twice? Three minutes, --quick one.
    """
    from uneven_bench.fleet.kill import run, tables
    from uneven_bench.show import show

    _find(data)
    show(lambda told: run(quick, data, told), tables, json)


@app.command("mutations")
def mutations(quick: Quick = False, json: Json = False) -> None:
    """6,400 inputs that went wrong: taken, or refused in words?

    Clusters, settings, ensembles, journals, states, command lines: is each one taken, or refused with one message? Four
    minutes, --quick one.
    """
    from uneven_bench.mutations.bench import run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told), tables, json)


@app.command("faults")
def faults(
    quick: Quick = False,
    json: Json = False,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Draw other faults.")] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="K[-L]", help="Play the K-th fault alone, or those from K to L.")
    ] = None,
) -> None:
    """200 faults: does each run end in time and in words?

    Drawn from --seed N: workers, launchers and shards of runs under all policies are killed, stopped, made to fail.
    Does the run end in time, name the culprit, leave nothing over, and does a resumed one use every sample once? --only
    K plays one of them again, --only K-L some in a row.

    A quarter of an hour, --quick two minutes.
    """
    from uneven_bench.faults.bench import SEED, run, tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, SEED if seed is None else seed, only), tables, json)


@app.command("elastic")
def elastic(
    quick: Quick = False,
    json: Json = False,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Draw other faults.")] = None,
    case: Case = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="CLUSTER", help="For spot: whose machines come and go.")
    ] = None,
) -> None:
    """Workers that are killed, stopped, told to leave, and join.

    Under `uneven run --elastic`, under torchft where it is installed, and under torchrun, which starts all again: how
    long the others pause, which samples are lost or used twice, whether the steps are those of one process, what it
    costs while nothing happens, and the goodput under recorded spot availability.

    Cases: faults, faults-100mb, stop, cut, torchft-ddp, replay, random, overhead, and spot, which is spot-uneven,
    spot-torchft and spot-torchrun; --trace spot_2022, spot_preempted, spot_fours and spot_sixteen play other records.

    An hour, --case NAME ten minutes at most; --quick a minute and a half.
    """
    from uneven_bench.elastic.bench import SEED, run
    from uneven_bench.elastic.page import tables
    from uneven_bench.show import show

    show(lambda told: run(quick, told, SEED if seed is None else seed, case, trace), tables, json)


app.command("far-sites")(far_sites)
app.command("focus")(focus)
app.command("preconditioners")(preconditioners)
app.command("recommendation")(recommendation)
app.command("gpu")(gpu)
app.command("graph")(graph)
