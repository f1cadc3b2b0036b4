"""``uneven run``: train a script on several workers."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from uneven import config, launch, rundir
from uneven.balance import balancers
from uneven.errors import ConfigError
from uneven.journal.paths import rank_paths
from uneven.sync import carried, policies

_READY_WITHIN_S = 60.0
_WORKERS = "Workers"
_MACHINES = "Several machines (as torchrun)"
_SETTINGS = "Training"


def run(
    target: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARG]", help="What to run; what follows it reaches it untouched.")
    ],
    nproc: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node",
            "--nproc",
            metavar="N",
            rich_help_panel=_WORKERS,
            help="Workers here: a number, gpu, cpu or auto. [default: as many as shares, or GPUs, or 1]",
        ),
    ] = None,
    module: Annotated[
        bool,
        typer.Option("--module", "-m", rich_help_panel=_WORKERS, help="SCRIPT is a module, as with python -m."),
    ] = False,
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="0.6,0.4,…",
            rich_help_panel=_WORKERS,
            help="Slow each worker down to so many cores, for instance 0.1, once it trains.",
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            rich_help_panel=_WORKERS,
            help="Start all workers anew so often when one dies. Over gloo that may hang after a kill.",
        ),
    ] = 0,
    balance: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_SETTINGS, help="Balancer, for instance lb-bsp."),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_SETTINGS, help="Synchronisation, for instance bsp."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(rich_help_panel=_SETTINGS, help="Decides the order of the samples.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(rich_help_panel=_SETTINGS, help="Part of an iteration that measuring may cost. [default: 0.005]"),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", rich_help_panel=_SETTINGS, help="How long to wait for a missing worker."),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", rich_help_panel=_SETTINGS, help="Settings. [default: ./uneven.toml]"),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=_SETTINGS, help="Journal. [default: runs/TIME-SCRIPT]"),
    ] = None,
    nnodes: Annotated[str, typer.Option(metavar="N|MIN:MAX", rich_help_panel=_MACHINES, help="Machines.")] = "1",
    node_rank: Annotated[int, typer.Option(rich_help_panel=_MACHINES, help="Which of them this is, from 0.")] = 0,
    master_addr: Annotated[str, typer.Option(rich_help_panel=_MACHINES, help="Address of machine 0.")] = "127.0.0.1",
    master_port: Annotated[
        int | None, typer.Option(rich_help_panel=_MACHINES, help="Port on machine 0. [default: 29500]")
    ] = None,
    rdzv_backend: Annotated[
        str | None, typer.Option(rich_help_panel=_MACHINES, help="How machines meet: static or c10d.")
    ] = None,
    rdzv_endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", rich_help_panel=_MACHINES, help="Where they meet.")
    ] = "",
    rdzv_id: Annotated[str, typer.Option(rich_help_panel=_MACHINES, help="Name under which they meet.")] = "",
    local_addr: Annotated[
        str | None, typer.Option(rich_help_panel=_MACHINES, help="Address of this machine for the others.")
    ] = None,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", rich_help_panel=_MACHINES, help="One machine, any free port (the default)."),
    ] = False,
) -> None:
    """Train SCRIPT on several workers, through torch's own launcher and with torchrun's option names.

    Options of uneven stand before SCRIPT; what follows it is the script's own. A worker that dies ends the run,
    with its exit code. Each worker finds the settings and its journal in the run directory.

    \b
    Examples:
      uneven run train.py --epochs 5             one worker for each GPU, or one
      uneven run --nproc 4 --shares 0.6,0.4,0.2,0.1 train.py
      uneven run --nproc 4 --balance static:shares=3/2/1/1 train.py
      uneven run --nproc 2 -m package.train
      uneven run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    """
    asked = {"balance": balance, "sync": sync, "seed": seed, "budget": budget, "timeout_s": timeout}
    layers = layers_of(asked, config_file)
    start = launch.Launch(
        target=tuple(target),
        module=module,
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=local_addr,
        standalone=standalone,
        max_restarts=max_restarts,
        shares=parse_shares(shares),
        wait_ready=shares is not None,
        ready_within_s=_READY_WITHIN_S,
    )
    directory = run_dir or rundir.new_path(target[0], datetime.now())
    # Every machine, for its workers read the settings there; where the disk is not shared, each has its own.
    rundir.create(directory, layers, shared=start.nodes[1] > 1)
    print(f"uneven: run directory {directory} (follow it with `uneven watch {directory}`)", file=sys.stderr)
    launch.run(start, run_directory=directory)
    if not rank_paths(directory):
        print(
            f"uneven: no journal in {directory}: the script made no uneven.Session(), so nothing was balanced; or it "
            f"named another journal",
            file=sys.stderr,
        )


def layers_of(asked: dict[str, Any], config_file: Path | None) -> rundir.Layers:
    """What the command line and the file say, checked before any process starts; conflicts are printed.

    Raises:
        ConfigError: a value is wrong, or a policy that a real run cannot carry.
        UnknownNameError: a balancer, policy or key that does not exist, offering the nearest one.
    """
    said = {key: value for key, value in asked.items() if value is not None}
    layers = {rundir.COMMAND_LINE: said, **rundir.file_layer(config_file)}
    settings, conflicts = config.merge(layers)
    for values in layers.values():
        if "balance" in values:
            balancers.resolve(values["balance"])
        if "sync" in values:
            policies.resolve(values["sync"])
    refusal = carried(settings.sync)
    if refusal:
        raise ConfigError(refusal)
    for conflict in conflicts:
        print(f"uneven: {conflict}", file=sys.stderr)
    return layers


def parse_shares(text: str | None) -> tuple[float, ...]:
    """Shares of a core, as typed.

    Raises:
        ConfigError: one of them is not a number.
    """
    try:
        return tuple(float(part) for part in (text or "").replace("/", ",").split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--shares {text}: give one number per worker, for instance 0.6,0.4,0.2,0.1") from None
