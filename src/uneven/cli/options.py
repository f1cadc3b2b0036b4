"""Options of several commands, each defined once, and all options of ``uneven run``, which are torchrun's.

A command declares ``balance: Balance = None``. If commands mean different things by one option, each has its own text:
``Annotated[int, played("N", "Steps of each worker.")]``.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uneven.cli import complete
from uneven.cli.help import BALANCERS, POLICIES, PREDICTORS
from uneven.runtime.installed import need

if TYPE_CHECKING:
    from uneven.journal.report.track import Tracker

_WORKERS = "Workers"
_MACHINES = "Several machines (as torchrun)"
_TRAINING = "Training"

DESCRIBED = "A TOML file, or the name of a cluster that comes with uneven, such as demo4."


def option(value: str, text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option for ``Annotated``, with the placeholder of its value, and its help."""
    return typer.Option(*names, metavar=value, help=text, rich_help_panel=panel, **more)


def switch(text: str, *names: str, panel: str | None = None) -> Any:
    """Return an option without a value."""
    return typer.Option(*names, help=text, rich_help_panel=panel)


def argument(value: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=value, help=text, **more)


_workers = partial(option, panel=_WORKERS)
_machines = partial(option, panel=_MACHINES)
_output = partial(option, panel="Output of workers (as torchrun)", show_default=False)
_training = partial(option, panel=_TRAINING)
played = partial(option, panel="Simulation")

# Options of commands that train a script: run and emulate.

_FORECASTS = f"Options follow a colon: :predictor=NAME takes one of {PREDICTORS}."

Module = Annotated[bool, switch("SCRIPT is a module, as with python -m.", "--module", "-m", panel=_WORKERS)]
Balance = Annotated[
    str | None,
    _training(
        "NAME",
        f"Balancer, which sets the shares: {BALANCERS}. {_FORECASTS} [default: lb-bsp]",
        autocompletion=complete.balancers,
    ),
]
Sync = Annotated[
    str | None, _training("NAME", f"Sync policy: {POLICIES}. [default: bsp]", autocompletion=complete.policies)
]
Seed = Annotated[int | None, _training("N", "Seed of the sample order. [default: 0]")]
Budget = Annotated[
    float | None,
    _training(
        "SHARE", "Greatest share of an iteration for measuring and balancing. [default: 0.005]", "--overhead-budget"
    ),
]
Threads = Annotated[int | None, _training("M", "Threads of each worker, for session.train(loop). [default: 1]")]
KeepFreedMemory = Annotated[
    bool | None,
    switch(
        "Keep freed memory for the next step. [default: keep]",
        "--keep-freed-memory/--no-keep-freed-memory",
        panel=_TRAINING,
    ),
]
Timeout = Annotated[
    float | None, _training("SECONDS", "Raise an error if a worker is missing for this long. [default: 300]")
]
ConfigFile = Annotated[Path | None, _training("FILE", "Settings file. [default: ./uneven.toml]", "--config")]
RunDir = Annotated[Path | None, _training("DIR", "Run directory. [default: runs/TIME-SCRIPT]")]

# Options of run: workers here, and on several machines.

Servers = Annotated[int, _workers("K", "Parameter server shards, each a process. [default: none]", show_default=False)]

Tables = Annotated[
    int, _workers("K", "Servers of embedding tables, each a process. [default: none]", show_default=False)
]

Script = Annotated[list[str], argument("SCRIPT [ARG]…", "Script to run, with its own arguments after it.")]
Nproc = Annotated[
    str | None,
    _workers(
        "N",
        "Workers on this machine: a number, gpu, cpu or auto. [default: one per share, or per GPU, or 1]",
        "--nproc-per-node",
        "--nproc",
    ),
]
Shares = Annotated[
    str | None, _workers("0.6,0.4,…", "Limit each worker to this many cores once it trains, for instance 0.6,0.1.")
]
MaxRestarts = Annotated[
    int, _workers("N", "Greatest number of restarts of all workers. With gloo, one can hang after SIGKILL.")
]
ElasticBounds = Annotated[
    str | None,
    _workers(
        "MIN:MAX",
        "Let workers leave, die and join while the others continue; least and greatest number of workers.",
        "--elastic",
    ),
]
Silence = Annotated[float, _workers("SECONDS", "With --elastic: treat a worker as lost if it is silent for this long.")]
Join = Annotated[str | None, _workers("HOST:PORT", "Join the elastic run with this store, also mid-epoch.")]
Ray = Annotated[
    int,
    _workers(
        "N", "With --elastic: start N additional workers on a Ray cluster. Lost workers are restarted.", "--ray", min=0
    ),
]
LeaveOn = Annotated[
    str,
    _workers(
        "SIGNAL",
        "With --elastic or --join: workers also leave on this signal, such as USR1 from Slurm's --signal.",
        "--leave-on",
        envvar="UNEVEN_LEAVE_ON",
    ),
]
Redirects = Annotated[
    str,
    _output(
        "STREAMS",
        "Write streams to files, not the console: 1 stdout, 2 stderr, 3 both; by local rank, 0:1,1:2.",
        "--redirects",
        "-r",
    ),
]
Tee = Annotated[
    str,
    _output(
        "STREAMS",
        "Write streams to files and console; values as for --redirects. Lines start with the rank.",
        "--tee",
        "-t",
    ),
]
LogRank = Annotated[
    str,
    _output(
        "0,1,…",
        "Show the output of these local ranks only, for instance 0. Files get the output of all.",
        "--log-rank",
        "--local-ranks-filter",
    ),
]
LogDir = Annotated[str, _output("DIR", "Folder for the files. [default: logs in the run directory]")]
Nnodes = Annotated[str, _machines("N|MIN:MAX", "Number of machines.")]
NodeRank = Annotated[int, _machines("N", "Rank of this machine (0-based).")]
MasterAddr = Annotated[str, _machines("HOST", "Address of the machine with rank 0.")]
MasterPort = Annotated[int | None, _machines("PORT", "Port on the machine with rank 0. [default: 29500]")]
RdzvBackend = Annotated[str | None, _machines("static|c10d", "Rendezvous backend.")]
RdzvEndpoint = Annotated[str, _machines("HOST:PORT", "Address of the rendezvous.")]
RdzvId = Annotated[str, _machines("NAME", "Name of the rendezvous, equal on all machines.")]
LocalAddr = Annotated[str | None, _machines("HOST", "Address of this machine that the other machines use.")]
Standalone = Annotated[
    bool, switch("Run on one machine, with any free port (the default).", "--standalone", panel=_MACHINES)
]

# Options of commands that train many models: fleet and search.

Devices = Annotated[str, option("auto|N|NAME,…", "Devices: auto, a number of CPU slots, or names (cuda:0,cuda:1).")]
Engine = Annotated[str, option("local|ray", "Engine: local, or ray for a Ray cluster (needs the extra ray).")]
FolderOf = Annotated[Path | None, option("DIR", "Run directory. [default: runs/NAME of the file]", "--run-dir")]
Page = Annotated[Path | None, option("FILE", "Write an HTML report.", "--report")]


def devices_named(text: str) -> str | int | list[str]:
    if text.isdecimal():
        return int(text)
    return text if text == "auto" else text.split(",")


# Options of commands that have curves: watch, report, fleet and search.

LogTo = Annotated[
    list[str] | None,
    option("TOOL:WHERE", "Log to tensorboard:FOLDER, wandb:FOLDER, mlflow:FOLDER or otel:URL. Repeatable.", "--log-to"),
]


def trackers(log_to: list[str] | None, report: Path | None = None) -> "list[Tracker]":
    """Return the tools that ``--log-to`` names. Raises ConfigError if one is missing, or plotly for a report."""
    from uneven.journal.report.track import tracker

    tools = [tracker(one) for one in log_to or ()]
    if report is not None:
        need("report", "plotly")
    return tools


# Options of commands that simulate: simulate and plan. Their meanings differ, so each command has its own text.


Preconditioner = Annotated[
    Path | None, played("FILE", "Include this preconditioner: a file with the table that KFAC.describe() returns.")
]
