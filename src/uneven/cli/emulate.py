"""The command ``uneven emulate``: train a script on a described cluster, on this machine."""

from typing import Annotated

from uneven.cli import complete, options
from uneven.cli.help import first
from uneven.cli.options import argument, option, switch
from uneven.cli.run import ends_with_a_line, layers_of, refuse_misfits, run_directory
from uneven.cluster import files
from uneven.cluster.emulate.emulation import READY_WITHIN_S, check, emulate
from uneven.cluster.emulate.pure.requirements import without
from uneven.cluster.pure.describe.write import to_toml
from uneven.errors import access
from uneven.policy.core import run_config
from uneven.policy.sync import by_server, policies
from uneven.runtime.launch import Launch

_CLUSTER = "Cluster"


@first(
    *("--module", "--leave-out", "--unprivileged", "--ready-within", "--elastic"),
    *("--balance", "--sync", "--seed", "--config", "--run-dir"),
)
def command(
    cluster: Annotated[str, argument("CLUSTER", options.DESCRIBED, autocompletion=complete.clusters)],
    target: Annotated[list[str], argument("-- SCRIPT [ARG]…", "Script to run, with its own arguments after it.")],
    module: options.Module = False,
    leave_out: Annotated[
        list[str] | None,
        option(
            "KEY",
            "Key to leave out: latency_s, up_bit_per_s, memory_bytes, load, links, events, … Repeatable.",
            panel=_CLUSTER,
        ),
    ] = None,
    unprivileged: Annotated[
        bool, switch("Act as an ordinary user, also as root.", "--unprivileged", panel=_CLUSTER)
    ] = False,
    ready_within: Annotated[
        float,
        option(
            "SECONDS",
            "Apply the description when every worker trains, or at the latest after this time.",
            panel=_CLUSTER,
        ),
    ] = READY_WITHIN_S,
    elastic: options.ElasticBounds = None,
    silence: options.Silence = 10.0,
    balance: options.Balance = None,
    sync: options.Sync = None,
    seed: options.Seed = None,
    budget: options.Budget = None,
    timeout: options.Timeout = None,
    threads: options.Threads = None,
    keep_freed_memory: options.KeepFreedMemory = None,
    config_file: options.ConfigFile = None,
    run_dir: options.RunDir = None,
) -> None:
    """Train SCRIPT on a described cluster, on this machine: real processes, real PyTorch, real sockets.

    Each node runs one worker. As root on Linux, each node has a network namespace and a link with limited bandwidth.
    Quotas of processor time, memory limits and competing processes are as described. An ordinary user gets shares of
    processor time only; other keys raise an error.

    Time starts when the training of every worker has started. SCRIPT is any script that runs under `uneven run`.

    Exit codes: 0 success; 2 wrong setting, before the start; 128 + N stopped by signal N; otherwise that of the worker.

    \b
    Examples:
      uneven emulate demo4 -- train.py --epochs 5
      uneven emulate cluster.toml --balance even -- train.py
      uneven emulate cluster.toml --leave-out latency_s -- -m package.train
      uneven emulate spot --elastic 2:8 -- train.py
    """
    # After -- the parser leaves -m to the arguments.
    if target[0] == "-m":
        module, target = True, target[1:]
    spec = without(files.load(cluster), leave_out or ())
    founders = str(len(spec.initial_members))
    launch = Launch(target=tuple(target), module=module, nproc=founders, elastic=elastic, silence_s=silence)
    check(spec, unprivileged=unprivileged, elastic=elastic is not None)  # before a run directory is made
    asked = {"balance": balance, "sync": sync, "seed": seed, "overhead_budget": budget, "timeout_s": timeout}
    asked |= {"threads": threads, "keep_freed_memory": keep_freed_memory}
    layers = layers_of(asked, config_file)
    refuse_misfits(layers, len(spec.nodes) if elastic is None else None)
    directory = run_directory(run_dir, launch.target[0], layers)
    # `uneven plan RUN` reads the description there.
    with access(f"write the cluster into {directory}"):
        (directory / "cluster.toml").write_text(to_toml(spec), encoding="utf-8")
    with ends_with_a_line(directory):
        emulate(
            spec,
            launch,
            run_directory=directory,
            unprivileged=unprivileged,
            ready_within_s=ready_within,
            served=elastic is not None and by_server(policies.resolve(run_config.merge(layers)[0].sync)),
        )
