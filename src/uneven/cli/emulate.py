"""``uneven emulate``: train a script on a described cluster, on this machine."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from uneven import rundir
from uneven.cli.run import layers_of
from uneven.cluster import files
from uneven.cluster.write import to_toml
from uneven.emulate.checks import without
from uneven.emulate.run import READY_WITHIN_S, check, emulate
from uneven.emulate.workers import Program
from uneven.journal.paths import rank_paths

_CLUSTER = "Cluster"
_SETTINGS = "Training"


def command(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER", help="A TOML file, or the name of one that comes with uneven: demo4.")
    ],
    target: Annotated[
        list[str], typer.Argument(metavar="-- SCRIPT [ARG]", help="What to run; what follows -- reaches it untouched.")
    ],
    module: Annotated[
        bool,
        typer.Option("--module", "-m", rich_help_panel=_CLUSTER, help="SCRIPT is a module, as with python -m."),
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            rich_help_panel=_CLUSTER,
            help="Emulate without latency_s, up_bit_per_s, memory_bytes, load, links, events, …; may be repeated.",
        ),
    ] = None,
    unprivileged: Annotated[
        bool, typer.Option("--unprivileged", rich_help_panel=_CLUSTER, help="Do as an ordinary user can, also as root.")
    ] = False,
    ready_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=_CLUSTER,
            help="The description holds once every worker trains, and after this time in any case.",
        ),
    ] = READY_WITHIN_S,
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
) -> None:
    """Train SCRIPT on a described cluster, on this machine: real processes, real PyTorch, real sockets.

    One worker runs on every node. As root on Linux a node has a network namespace, a link with its bandwidth, a
    quota of processor time, a limit on memory and busy rivals, as the description says. An ordinary user gets
    shares of processor time; what else the description wants is refused by name.

    Time counts from when every worker's training has started. SCRIPT is any script that runs under `uneven run`.

    \b
    Examples:
      uneven emulate demo4 -- train.py --epochs 5
      uneven emulate cluster.toml --balance even -- train.py
      uneven emulate cluster.toml --leave-out latency_s -- -m package.train
    """
    if target[0] == "-m":
        module, target = True, target[1:]
    spec = without(files.load(cluster), leave_out or ())
    program = Program(target=tuple(target), module=module)
    check(spec, unprivileged=unprivileged)  # before there is a run directory
    asked = {"balance": balance, "sync": sync, "seed": seed, "budget": budget, "timeout_s": timeout}
    layers = layers_of(asked, config_file)
    directory = run_dir or rundir.new_path(program.target[0], datetime.now())
    rundir.create(directory, layers)
    (directory / "cluster.toml").write_text(to_toml(spec), encoding="utf-8")
    print(f"uneven: run directory {directory} (follow it with `uneven watch {directory}`)", file=sys.stderr)
    emulate(spec, program, run_directory=directory, unprivileged=unprivileged, ready_within_s=ready_within)
    if not rank_paths(directory):
        print(f"uneven: no journal in {directory}: the script made no uneven.Session()", file=sys.stderr)
