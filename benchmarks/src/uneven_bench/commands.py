"""``uneven bench NAME``: one command for each bench, which imports its modules only when it runs.

A command is its options and its help alone. Its bench has ``run`` in ``uneven_bench.NAME.bench``.
"""

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from uneven.errors import UnknownNameError

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

OPTIONS: dict[str, tuple[Any, Any]] = {
    "quick": (Annotated[bool, typer.Option("--quick", help="Fewer rounds; ends sooner.")], False),
    "json": (Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")], False),
    "case": (Annotated[str | None, typer.Option("--case", metavar="NAME", help="One case alone.")], None),
    "data": (Annotated[str, typer.Option(help="digits (comes with uneven) or fashion-mnist (from UNEVEN_DATA).")], ""),
    "seed": (Annotated[int | None, typer.Option(metavar="N", help="Draw other faults.")], None),
    "only": (Annotated[str | None, typer.Option(metavar="K[-L]", help="Play the K-th alone, or K to L.")], None),
    "faults": (Annotated[int | None, typer.Option(metavar="N", min=1, help="The number of faults.")], None),
    "trace": (Annotated[str | None, typer.Option(metavar="CLUSTER", help="For spot: whose machines move.")], None),
    "width": (Annotated[int | None, typer.Option(min=1, metavar="N", help="Channels: 64, quickly 16")], None),
    "keep": (Annotated[Path | None, typer.Option(metavar="DIR", help="Keep its runs: a data set to share.")], None),
    "record": (Annotated[Path | None, typer.Option(metavar="DIR", help="Record runs; keep them.")], None),
    "runs": (Annotated[Path | None, typer.Option(metavar="DIR", help="Use runs recorded before.")], None),
    "report": (Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: one HTML file.")], None),
}
"""Name → its type and help, and its default."""

Command = Callable[..., None]
_SEARCHED = "fashion-mnist" if "UNEVEN_DATA" in os.environ else "digits"  # the data of searches


def bench(
    *options: str, module: str = "", whole: str, case: str = "", quick: str, data: str = "digits"
) -> Callable[[Command], Command]:
    """Return a decorator that makes a command of its help. ``options``: those next to --quick and --json; ``module``:
    with ``run``, if it has another name; ``whole``, ``case``, ``quick``: about how long these take on two cores; the
    help and the first line of a run say so; ``data``: the default of --data."""

    def register(command: Command) -> Command:
        name = command.__name__.replace("_", "-")
        where = f"uneven_bench.{module or command.__name__ + '.bench'}"

        def play(json: bool, **options: Any) -> None:
            from uneven_bench.harness.show import show
            from uneven_bench.harness.tables import tables

            if "data" in options:
                from uneven.cluster.virtual.datasets import images

                images(options["data"])  # raise here if it is missing, not in a worker
            takes = quick if options["quick"] else case if options.get("case") and case else whole
            if not (options.get("only") or options.get("faults")):  # as long as the user's number of cases takes
                sys.stderr.write(f"uneven: bench {name} takes about {takes}\n")
            found = import_module(where)
            show(lambda told: found.run(progress=told, **options), json, getattr(found, "tables", tables))

        one = f", with --case NAME {case}" if case else ""
        play.__doc__ = f"{inspect.getdoc(command)}\n\nTakes {whole}{one}, with --quick {quick}."
        given = {option: OPTIONS[option] for option in ("quick", "json", *options)}
        given |= {"data": (OPTIONS["data"][0], data)} if "data" in options else {}
        play.__annotations__ = {option: kind for option, (kind, _) in given.items()}
        play.__signature__ = inspect.Signature([  # type: ignore[attr-defined]  # typer reads the options there
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for option, (kind, default) in given.items()
        ])  # fmt: skip
        return app.command(name)(play)

    return register


@bench("data", "case", whole="fifty minutes", case="nine minutes", quick="a minute and a quarter")
def lb_bsp() -> None:
    """Balanced batches against DDP, rivals and an oracle.

    Real workers on shares of a core, and every way to deal with them: DDP, static shares, DBS, OmniLearn, LBB, FlexRR,
    backup workers, accumulation, ours, and an oracle that knows the next shares.

    Cases: steady, step, traces, eight, equal, pair (equal workers, DDP and ours alone), cut (as root), svm, resnet;
    real data where UNEVEN_DATA has it. --quick measures steady and pair without the rivals.
    """


@bench("data", "record", "runs", whole="ten minutes", quick="a minute")
def predictors() -> None:
    """Errors of predictors, and the times they lead to.

    On traces, made-up workers and, as root, emulated runs with real rivals. --record DIR keeps the runs, --runs DIR
    uses kept ones. To record takes five of the minutes; --quick does not.
    """


@bench(whole="a minute", quick="ten seconds")
def balancers() -> None:
    """Balancers in virtual time, on known costs.

    Saturation, constant parts, memory limits, a cut link.
    """


@bench(whole="two minutes", quick="twenty seconds")
def rivals() -> None:
    """Rivals from the literature and ours in virtual time, against an oracle.

    Then load that changes every 25, 5 or 2 iterations, under ours and iterations that workers finish together.
    """


@bench("data", module="overhead", whole="two minutes", quick="a minute")
def overhead() -> None:
    """The cost of measuring and deciding in an iteration.

    In one of 4 and 8 real workers, and for one decision for up to 10,000.
    """


@bench("case", whole="six minutes", case="three minutes", quick="a minute")
def loops() -> None:
    """Samples that cost unequally, and evaluations, on four unequal workers.

    Cases: packed and padded (speeches of Shakespeare, from UNEVEN_DATA), evaluate.
    """


@bench("data", module="threads", whole="five minutes", quick="half a minute")
def threads() -> None:
    """One replica trained by one thread, or by two, without a lock: samples/s, and the loss."""


@bench("data", "case", "width", "keep", whole="twenty-five minutes", case="three minutes", quick="a minute and a half")
def worlds() -> None:
    """Described clusters, emulated and simulated: do both agree?

    Emulated with real processes, as root, with links. --quick plays steady shares unless a case is named. --case
    outside emulates nothing: it compares simulations with measurements of others in UNEVEN_DATA, in half a minute.
    """


@bench("data", whole="fourteen minutes", quick="a minute")
def server() -> None:
    """The parameter server in shards, against a plain ZeroMQ one.

    Push and pull, shards that are killed, 64 workers for ten minutes, a million malformed messages.
    """


@bench("data", "case", whole="hours", case="twenty minutes", quick="a minute and a half")
def sync() -> None:
    """Policies on slow links, against DDP and its hooks.

    In the foreground, in the shadow and through a parameter server, against DDP with its hooks, post-local SGD, torchft
    where it is installed, and no exchange at all, on emulated links, as root: samples/s, losses, sync gap, bytes.

    Cases: fast, 100mbit, 20mbit, straggler, both; each with -2, -4, -8 workers, and then with -shadows, which are alone
    there; twins-4.
    """


@bench("data", whole="half an hour", quick="a minute and a half")
def fleet() -> None:
    """Six networks trained on shared data, under FLEET or without.

    Without it: one pipeline each, random subsets, one after the other, trials of Ray Tune, TensorSocket, both where
    installed.
    """


@bench("data", "case", whole="ten minutes", quick="a minute and a half", data=_SEARCHED)
def search() -> None:
    """A search of settings against Ray Tune and Optuna.

    The overhead of a trivial trial, decisions on a table of real accuracies, a real search with shared data and
    without, and devices with shares of .6, .4, .2 and .1. The table needs UNEVEN_DATA.

    Cases: overhead, decisions, real, unequal.
    """


@bench(module="search.kill", whole="six minutes", quick="a minute and a half")
def search_kill() -> None:
    """Searches in which processes are killed.

    The search, or one of its processes, gets kill -9 at a random moment, twenty times: does it end as the undisturbed
    one, and is nothing trained twice?
    """


@bench("report", whole="half a minute", quick="five seconds")
def fleet_plan() -> None:
    """100 members in virtual time under FLEET and its rivals.

    Also small ensembles against the best rounds there are, and how long planning takes. --report draws plans.
    """


@bench("data", module="fleet.kill", whole="three minutes", quick="a minute")
def fleet_kill() -> None:
    """Trainings of an ensemble in which processes are killed.

    The run, a member or a preprocessor gets kill -9 at ten random moments: does each member end trained, and nothing
    twice?
    """


@bench(whole="four minutes", quick="a minute")
def mutations() -> None:
    """6,400 inputs that went wrong: taken, or refused in words?

    Clusters, settings, ensembles, journals, states, command lines: is each one taken, or refused with one message?
    """


@bench("seed", "only", whole="a quarter of an hour", quick="a minute and a half")
def faults() -> None:
    """200 faults: does each run end in time and in words?

    Drawn from --seed N: workers, launchers and shards of runs under all policies are killed, stopped, made to fail.
    Does the run end in time, name the culprit, leave nothing over, and does a resumed one use every sample once? --only
    K plays one of them again, --only K-L some in a row.
    """


@bench("seed", "faults", "only", whole="half an hour", quick="a minute and a half")
def machines() -> None:
    """300 faults between machines: does each run end in time and in words?

    Three hosts in network namespaces, a launcher on each; a fourth has the store of elastic runs. Hosts die, are cut
    off, links lose packets or stall, disks are full or hang, clocks jump. Does each run end or continue as the page of
    limits says, name the culprit, leave nothing over, and lose or double no sample? Needs root. --only K plays one
    again.
    """


@bench("seed", "case", "only", whole="half an hour", case="six minutes", quick="a minute and a half")
def why() -> None:
    """Is the slow worker named, with the right cause, and is nothing said of equal ones?

    60 runs of three workers with one disturbance (a quota, stops, competition, slow data, heavy batches, a slow link,
    garbage collection, compilation, page faults, …) under DDP, FSDP2 and a plain loop; 40 without one, half of them
    next to busy loops; the time that the measurement adds to steps of 5 and 50 ms; and the promised gain of each remedy
    against that of really doing it, on emulated machines. Slow links and remedies need root.

    Case: rivals, seven scripts that TraceML explains as well, where it is installed.
    """


@bench("seed", "case", "trace", whole="an hour", case="ten minutes", quick="a minute and a half")
def elastic() -> None:
    """Workers that are killed, stopped, told to leave, and join.

    Under `uneven run --elastic`, under torchft where it is installed, and under torchrun, which starts all again: how
    long the others pause, which samples are lost or used twice, whether the steps are those of one process, what it
    costs while nothing happens, and the goodput under recorded spot availability.

    Cases: faults, faults-100mb, stop, cut, torchft-ddp, replay, random, overhead, and spot, which is spot-uneven,
    spot-torchft and spot-torchrun; --trace spot_2022, spot_preempted, spot_fours and spot_sixteen play other records.
    """


@bench("data", "case", whole="forty minutes", case="ten minutes", quick="a minute and a half")
def far_sites() -> None:
    """Sites on slow lines, and sites with data unlike each other's.

    Gaia, local steps, the largest entries, both together, DiLoCo, against BSP, DDP and, where installed, torchft and
    hivemind: losses at equal time and bytes in virtual time, times of real runs on emulated lines, as root; then batch
    norm and group norm under skewed labels, and a tuner against every fixed setting.

    Cases: filter, learning, muloco, cifar10, text, adapters (of PEFT, half an hour, if it is named), 20mbit, 100mbit,
    three_sites, skew, scout; CIFAR-10 and text from UNEVEN_DATA. --quick leaves real runs out; --quick --case 20mbit
    plays one.
    """


@bench("case", whole="forty minutes", case="ten minutes", quick="a minute and a half")
def focus() -> None:
    """Recorded video: Focus against ingest-heavy, query-all, a NoScope-style cascade, FAISS and TASTI-style.

    All are given the same frames and boxes; costs are processor seconds. The truth networks are trained here on the
    first run, which takes ten minutes more, and kept in the user's cache. Data from UNEVEN_DATA.

    Cases: synthetic (pictures of CIFAR-10 in a fixed scene of twelve hours, also with other targets), clips (real
    scenes), change (the scene shows other classes from some day on), speed (a clip of 640 x 480 on one core), kills
    (ten processes killed at ingest, ten in queries).
    """


@bench("data", "case", whole="an hour", case="ten minutes", quick="a minute and a half")
def preconditioners() -> None:
    """K-FAC, SOAP and Muon: what they cost in a step, and where they pay.

    Steps of ResNets, an MLP and a transformer on four workers against kfac-pytorch (where KFAC_PYTORCH says
    where it is installed), SGD, AdamW and torch's Muon; bytes and memory; exactness on unequal shares; unequal workers;
    links of 100 Mbit/s; time to a target on three tasks; settings that blow up.

    Cases: steps, exact, unequal, links, target, blow-ups; steps:mlp, target:cnn and unequal:muon are one model,
    task or method alone, target:cnn:soap one method. --quick plays steps of one ResNet, exact and two of the settings.
    """


@bench("case", "report", whole="forty minutes", case="ten minutes", quick="a minute and a half")
def recommendation() -> None:
    """Trainers with embedding tables on a server.

    Examples a second by the number of trainers at a fifth of a core each, on unequal shares, next to a slow one, and
    against one process, DDP with sparse gradients and TorchRec where it is installed; processor time of trainers and
    server. Then log loss after one pass in virtual time, against one process, a synchronous batch of the same size and
    foreground twins, each tuned over the same grid, on the flights in UNEVEN_DATA, else on a made log. Then a run in
    which a shard of two is killed thrice, and a shard of two gigabytes that saves while a trainer continues. Then
    look-ups of other programs over HTTP and ZeroMQ while a trainer continues. Last, a table on disk with a tenth of its
    rows in memory, against the same table in memory.

    Cases: scaling, slow, processes, nothing-shared, torchrec, quality, killed, checkpoint, serve, disk. --quick plays
    one round of three trainings, quality and killed; --report draws how it scales.
    """


@bench("case", whole="two minutes", case="a minute", quick="a minute")
def gpu() -> None:
    """Costs and gains of the library on a GPU.

    A session's step against the plain loop's; K-FAC, SOAP and Muon against SGD, AdamW and, where KFAC_PYTORCH says
    where it is installed, kfac-pytorch; two workers that share the GPU, one of which takes three times as long for a
    sample; a worker on the GPU with one on a core.

    Cases: session, second-order, pair, unlike. One CUDA device is needed.
    """


@bench("case", whole="an hour", case="ten minutes", quick="a minute and a half")
def graph() -> None:
    """Graphs: kernels, training steps, cuts and exchanges against DGL, PyG and torch.

    Real graphs from UNEVEN_DATA. DGL and PyG are compared if they are installed ('./benchmarks[graph]'); malloc keeps
    what is freed, for all alike. --quick leaves four workers out unless a case asks for them.

    Cases: kernel (one thread), step, cuts, exact, exchanges (four workers, ours and DistGNN's), links (the same at 100
    Mbit/s, as root), unequal (four workers with .6, .3, .2 and .1 of a core), accuracy, large.
    """
