"""Options of several commands, each defined once, and all options of ``uneven run``, which are torchrun's.

A command declares ``balance: Balance = None``. If commands mean different things by one option, each has its own text:
``Annotated[int, played("Steps of each worker.")]``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uneven.cli import complete
from uneven.cli.help import BALANCERS, POLICIES, PREDICTORS

if TYPE_CHECKING:
    from uneven.journal.report.track import Tracker

_WORKERS = "Workers"
_MACHINES = "Several machines (as torchrun)"
_OUTPUT = "Output of workers (as torchrun)"
_TRAINING = "Training"
_PLAYED = "Simulation"

DESCRIBED = "A TOML file, or the name of a cluster that comes with uneven, such as demo4."


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option for ``Annotated``, under the heading ``panel``, with the help ``text``."""
    return typer.Option(*names, rich_help_panel=panel, help=text, **more)


# Options of commands that train a script: run and emulate.

_FORECASTS = f"Options follow a colon: :predictor=NAME takes one of {PREDICTORS}."

Module = Annotated[bool, option(_WORKERS, "SCRIPT is a module, as with python -m.", "--module", "-m")]
Balance = Annotated[
    str | None,
    option(
        _TRAINING,
        f"Balancer, which sets the shares: {BALANCERS}. {_FORECASTS} [default: lb-bsp]",
        metavar="NAME",
        autocompletion=complete.balancers,
    ),
]
Sync = Annotated[
    str | None,
    option(_TRAINING, f"Sync policy: {POLICIES}. [default: bsp]", metavar="NAME", autocompletion=complete.policies),
]
Seed = Annotated[int | None, option(_TRAINING, "Seed of the sample order. [default: 0]", metavar="N")]
Budget = Annotated[
    float | None,
    option(_TRAINING, "Greatest share of an iteration for measuring and balancing. [default: 0.005]", metavar="SHARE"),
]
Threads = Annotated[
    int | None, option(_TRAINING, "Threads of each worker, for session.train(loop). [default: 1]", metavar="M")
]
KeepFreedMemory = Annotated[
    bool | None,
    option(
        *(_TRAINING, "Keep freed memory for the next step. [default: keep]"),
        "--keep-freed-memory/--no-keep-freed-memory",
    ),
]
Timeout = Annotated[
    float | None,
    option(_TRAINING, "Raise an error if a worker is missing for this long. [default: 300]", metavar="SECONDS"),
]
ConfigFile = Annotated[
    Path | None, option(_TRAINING, "Settings file. [default: ./uneven.toml]", "--config", metavar="FILE")
]
RunDir = Annotated[Path | None, option(_TRAINING, "Run directory. [default: runs/TIME-SCRIPT]", metavar="DIR")]

# Options of run: workers here, and on several machines.

Servers = Annotated[
    int,
    option(_WORKERS, "Parameter server shards, each a process. [default: none]", metavar="K", show_default=False),
]

Tables = Annotated[
    int,
    option(_WORKERS, "Servers of embedding tables, each a process. [default: none]", metavar="K", show_default=False),
]

Script = Annotated[
    list[str], typer.Argument(metavar="SCRIPT [ARG]…", help="Script to run, with its own arguments after it.")
]
Nproc = Annotated[
    str | None,
    option(
        *(_WORKERS, "Workers on this machine: a number, gpu, cpu or auto. [default: one per share, or per GPU, or 1]"),
        *("--nproc-per-node", "--nproc"),
        metavar="N",
    ),
]
Shares = Annotated[
    str | None,
    option(_WORKERS, "Limit each worker to this many cores once it trains, for instance 0.6,0.1.", metavar="0.6,0.4,…"),
]
MaxRestarts = Annotated[
    int,
    option(_WORKERS, "Greatest number of restarts of all workers. With gloo, one can hang after SIGKILL.", metavar="N"),
]
ElasticBounds = Annotated[
    str | None,
    option(
        *(_WORKERS, "Let workers leave, die and join while the others continue; least and greatest number of workers."),
        "--elastic",
        metavar="MIN:MAX",
    ),
]
Silence = Annotated[
    float,
    option(_WORKERS, "With --elastic: treat a worker as lost if it is silent for this long.", metavar="SECONDS"),
]
Join = Annotated[
    str | None, option(_WORKERS, "Join the elastic run with this store, also mid-epoch.", metavar="HOST:PORT")
]
Ray = Annotated[
    int,
    option(
        *(_WORKERS, "With --elastic: start N additional workers on a Ray cluster. Lost workers are restarted."),
        "--ray",
        metavar="N",
        min=0,
    ),
]
LeaveOn = Annotated[
    str,
    option(
        *(_WORKERS, "With --elastic or --join: workers also leave on this signal, such as USR1 from Slurm's --signal."),
        "--leave-on",
        metavar="SIGNAL",
        envvar="UNEVEN_LEAVE_ON",
        show_default=False,
    ),
]
Redirects = Annotated[
    str,
    option(
        *(_OUTPUT, "Write streams to files, not the console: 1 stdout, 2 stderr, 3 both; by local rank, 0:1,1:2."),
        *("--redirects", "-r"),
        metavar="STREAMS",
        show_default=False,
    ),
]
Tee = Annotated[
    str,
    option(
        *(_OUTPUT, "Write streams to files and console; values as for --redirects. Lines start with the rank."),
        *("--tee", "-t"),
        metavar="STREAMS",
        show_default=False,
    ),
]
LogRank = Annotated[
    str,
    option(
        *(_OUTPUT, "Show the output of these local ranks only, for instance 0. Files get the output of all."),
        *("--log-rank", "--local-ranks-filter"),
        metavar="0,1,…",
        show_default=False,
    ),
]
LogDir = Annotated[
    str,
    option(_OUTPUT, "Folder for the files. [default: logs in the run directory]", metavar="DIR", show_default=False),
]
Nnodes = Annotated[str, option(_MACHINES, "Number of machines.", metavar="N|MIN:MAX")]
NodeRank = Annotated[int, option(_MACHINES, "Rank of this machine (0-based).", metavar="N")]
MasterAddr = Annotated[str, option(_MACHINES, "Address of the machine with rank 0.", metavar="HOST")]
MasterPort = Annotated[
    int | None, option(_MACHINES, "Port on the machine with rank 0. [default: 29500]", metavar="PORT")
]
RdzvBackend = Annotated[str | None, option(_MACHINES, "Rendezvous backend.", metavar="static|c10d")]
RdzvEndpoint = Annotated[str, option(_MACHINES, "Address of the rendezvous.", metavar="HOST:PORT")]
RdzvId = Annotated[str, option(_MACHINES, "Name of the rendezvous, equal on all machines.", metavar="NAME")]
LocalAddr = Annotated[
    str | None, option(_MACHINES, "Address of this machine that the other machines use.", metavar="HOST")
]
Standalone = Annotated[bool, option(_MACHINES, "Run on one machine, with any free port (the default).", "--standalone")]

# Options of commands that train many models: fleet and search.

Devices = Annotated[
    str,
    typer.Option(help="Devices: auto, a number of CPU slots, or names (cuda:0,cuda:1).", metavar="auto|N|NAME,…"),
]
Engine = Annotated[
    str, typer.Option(help="Engine: local, or ray for a Ray cluster (needs the extra ray).", metavar="local|ray")
]
FolderOf = Annotated[
    Path | None,
    typer.Option(
        "--run-dir", metavar="DIR", help="Run directory. [default: runs/NAME of the file]", show_default=False
    ),
]
Page = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report.", show_default=False)
]


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
        help="Log to tensorboard:FOLDER, wandb:FOLDER, mlflow:FOLDER or otel:URL. Repeatable.",
        show_default=False,
    ),
]


def trackers(log_to: list[str] | None) -> "list[Tracker]":
    """Return the tools that ``--log-to`` names."""
    from uneven.journal.report.track import tracker

    return [tracker(one) for one in log_to or ()]


# Options of commands that simulate: simulate and plan. Their meanings differ, so each command has its own text.


def played(text: str, **more: Any) -> Any:
    return option(_PLAYED, text, **more)


Preconditioner = Annotated[
    Path | None,
    played(
        "Include this preconditioner: a file with the table that KFAC.describe() returns.",
        metavar="FILE",
        show_default=False,
    ),
]


def task(text: str, panel: str = _PLAYED) -> Any:
    return option(panel, text, metavar="TASK", show_default=False)


def accuracy(text: str, panel: str = _PLAYED) -> Any:
    return option(panel, text, "--accuracy", metavar="SHARE", show_default=False)
