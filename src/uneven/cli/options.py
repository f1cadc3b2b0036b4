"""Options of several commands, each defined once, and all options of ``uneven run``, which are torchrun's.

A command declares ``balance: Balance = None``. If commands mean different things by one option, each has its own text:
``Annotated[int, played("Steps of each worker.")]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uneven.cli.plugin_names import BALANCERS, POLICIES, PREDICTORS

if TYPE_CHECKING:
    from uneven.journal.report.track import Tracker

_WORKERS = "Workers"
_MACHINES = "Several machines (as torchrun)"
_OUTPUT = "What workers print (as torchrun)"
_TRAINING = "Training"
_PLAYED = "What is played"

DESCRIBED = "A TOML file, or the name of one that comes with uneven: demo4."


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option for ``Annotated``, under the heading ``panel``, with the help ``text``."""
    return typer.Option(*names, rich_help_panel=panel, help=text, **more)


# Options of commands that train a script: run and emulate.

_FORECASTS = f"Options follow a colon, for instance :predictor=NAME, one of {PREDICTORS}."

Module = Annotated[bool, option(_WORKERS, "SCRIPT is a module, as with python -m.", "--module", "-m")]
Balance = Annotated[
    str | None,
    option(_TRAINING, f"Who takes how many samples: {BALANCERS}. {_FORECASTS} [default: lb-bsp]", metavar="NAME"),
]
Sync = Annotated[str | None, option(_TRAINING, f"When replicas agree: {POLICIES}. [default: bsp]", metavar="NAME")]
Seed = Annotated[int | None, option(_TRAINING, "Decides the order of the samples.")]
Budget = Annotated[
    float | None, option(_TRAINING, "Share of an iteration that measuring and deciding may take. [default: 0.005]")
]
Threads = Annotated[
    int | None, option(_TRAINING, "Threads of each worker, for session.train(loop). [default: 1]", metavar="M")
]
KeepFreedMemory = Annotated[
    bool | None,
    option(
        *(_TRAINING, "Keep the memory that a step frees for the next one. [default: keep]"),
        "--keep-freed-memory/--no-keep-freed-memory",
    ),
]
Timeout = Annotated[
    float | None, option(_TRAINING, "How long to wait for a missing worker before giving up.", metavar="SECONDS")
]
ConfigFile = Annotated[Path | None, option(_TRAINING, "Settings. [default: ./uneven.toml]", "--config", metavar="FILE")]
RunDir = Annotated[Path | None, option(_TRAINING, "Journal. [default: runs/TIME-SCRIPT]", metavar="DIR")]

# Options of run: workers here, and on several machines.

Servers = Annotated[
    int,
    option(_WORKERS, "Parameter server shards, each in a process. [default: none]", metavar="K", show_default=False),
]

Tables = Annotated[
    int,
    option(
        _WORKERS, "Servers of embedding tables, each in a process. [default: none]", metavar="K", show_default=False
    ),
]

Script = Annotated[
    list[str], typer.Argument(metavar="SCRIPT [ARG]", help="What to run; what follows it reaches it untouched.")
]
Nproc = Annotated[
    str | None,
    option(
        *(_WORKERS, "Workers here: a number, gpu, cpu or auto. [default: as many as shares, or GPUs, or 1]"),
        *("--nproc-per-node", "--nproc"),
        metavar="N",
    ),
]
Shares = Annotated[
    str | None,
    option(_WORKERS, "Limit each worker to this many cores, for instance 0.1, once it trains.", metavar="0.6,0.4,…"),
]
MaxRestarts = Annotated[
    int, option(_WORKERS, "How often to restart all workers when one dies. Over gloo that may hang after a kill.")
]
ElasticBounds = Annotated[
    str | None,
    option(
        *(_WORKERS, "Workers may leave, die and join while the others go on: the least and the greatest number."),
        "--elastic",
        metavar="MIN:MAX",
    ),
]
Silence = Annotated[
    float,
    option(_WORKERS, "With --elastic: a worker that is silent for this long counts as gone.", metavar="SECONDS"),
]
Join = Annotated[
    str | None, option(_WORKERS, "Join the elastic run whose store is there, also in mid-epoch.", metavar="HOST:PORT")
]
Ray = Annotated[
    int,
    option(
        *(_WORKERS, "With --elastic: so many more workers, where a Ray cluster has room; a lost one comes again."),
        "--ray",
        metavar="N",
        min=0,
    ),
]
LeaveOn = Annotated[
    str,
    option(
        *(_WORKERS, "With --elastic or --join: workers leave on this signal, too, as Slurm's --signal sends it."),
        "--leave-on",
        metavar="USR1",
        envvar="UNEVEN_LEAVE_ON",
        show_default=False,
    ),
]
Redirects = Annotated[
    str,
    option(
        *(_OUTPUT, "Streams into files instead of the console: 1 stdout, 2 stderr, 3 both; by local rank, 0:1,1:2."),
        *("--redirects", "-r"),
        metavar="STREAMS",
        show_default=False,
    ),
]
Tee = Annotated[
    str,
    option(
        *(_OUTPUT, "Streams into files and to the console, in the same form; each line begins with its rank."),
        *("--tee", "-t"),
        metavar="STREAMS",
        show_default=False,
    ),
]
LogRank = Annotated[
    str,
    option(
        *(_OUTPUT, "Show only what these local ranks print, for instance 0. Files get everybody's."),
        *("--log-rank", "--local-ranks-filter"),
        metavar="0,1,…",
        show_default=False,
    ),
]
LogDir = Annotated[
    str,
    option(_OUTPUT, "Folder for these files. [default: logs in the run directory]", metavar="DIR", show_default=False),
]
Nnodes = Annotated[str, option(_MACHINES, "Machines.", metavar="N|MIN:MAX")]
NodeRank = Annotated[int, option(_MACHINES, "Which of them this is, from 0.")]
MasterAddr = Annotated[str, option(_MACHINES, "Address of machine 0.")]
MasterPort = Annotated[int | None, option(_MACHINES, "Port on machine 0. [default: 29500]")]
RdzvBackend = Annotated[str | None, option(_MACHINES, "How machines meet: static or c10d.")]
RdzvEndpoint = Annotated[str, option(_MACHINES, "Where they meet.", metavar="HOST:PORT")]
RdzvId = Annotated[str, option(_MACHINES, "Name under which they meet.")]
LocalAddr = Annotated[str | None, option(_MACHINES, "Address of this machine for the others.")]
Standalone = Annotated[bool, option(_MACHINES, "One machine, any free port (the default).", "--standalone")]

# Options of commands that train many models: fleet and search.

Devices = Annotated[str, typer.Option(help="auto, a number of CPU slots, or names: cuda:0,cuda:1.")]
Engine = Annotated[str, typer.Option(help="local, or ray for the devices of a Ray cluster (the extra ray).")]


def devices_named(text: str) -> str | int | list[str]:
    if text.isdecimal():
        return int(text)
    return text if text == "auto" else text.split(",")


# Options of commands that have curves: watch, report, fleet and search.

LogTo = Annotated[
    list[str] | None,
    typer.Option(
        "--log-to",
        metavar="TOOL:WHERE",
        help="Log curves to tensorboard:FOLDER, wandb:FOLDER or mlflow:FOLDER; may be given several times.",
        show_default=False,
    ),
]


def trackers(log_to: list[str] | None, tensorboard: Path | None = None) -> list[Tracker]:
    """Return the tools named by ``--log-to``, and the one of ``--tensorboard DIR``, a short form."""
    from uneven.journal.report.track import tracker

    named = [*([] if tensorboard is None else [f"tensorboard:{tensorboard}"]), *(log_to or [])]
    return [tracker(one) for one in named]


# Options of commands that simulate: simulate and plan. Their meanings differ, so each command has its own text.


def played(text: str, **more: Any) -> Any:
    return option(_PLAYED, text, **more)


Preconditioner = Annotated[
    Path | None,
    played(
        "Let this preconditioner turn gradients: a file with what KFAC.describe() returns.",
        metavar="FILE",
        show_default=False,
    ),
]


def task(text: str, panel: str = _PLAYED) -> Any:
    return option(panel, text, metavar="TASK", show_default=False)


def accuracy(text: str, panel: str = _PLAYED) -> Any:
    return option(panel, text, metavar="SHARE", show_default=False)
