"""The command ``uneven run``: train a script on several workers."""

import re
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from uneven.cli import options
from uneven.cli.help import first
from uneven.errors import ConfigError, JournalError
from uneven.journal.reader import Follower, rank_paths
from uneven.journal.report.pure.advice import one_line
from uneven.journal.report.pure.live_state import RunProgress
from uneven.policy.balance import balancers
from uneven.policy.core import run_config
from uneven.policy.core.registry import describe
from uneven.policy.sync import carried, compatible, policies, threaded, unheeded
from uneven.runtime import launch, rundir
from uneven.runtime.installed import need
from uneven.runtime.launch.preflight import check, local_workers

_CORES = 1.0


@contextmanager
def ray_workers(
    start: launch.Launch, count: int, directory: Path, said: Mapping[str, Any], kept: bool | None
) -> Iterator[None]:
    """Run ``count`` additional workers that join, each a task of Ray; their journals are below ``directory``. Raises
    ConfigError if the run is not elastic, or has no address for others, or Ray is missing."""
    if count == 0:
        yield
        return
    if start.elastic is None or start.alone:
        raise ConfigError(
            f"--ray {count}: workers on other machines join an elastic run: add --elastic MIN:MAX and "
            f"--rdzv-endpoint HOST:PORT, an address of this machine that the cluster reaches"
        )
    need("ray", "ray")
    from uneven.runtime.jobs.ray_lines import RayLines

    options = [word for name, value in said.items() if value is not None for word in (name, str(value))]
    options += [] if kept is None else ["--keep-freed-memory" if kept else "--no-keep-freed-memory"]
    target = ["-m", *start.target] if start.module else start.target

    def line(number: int) -> list[str]:
        folder = str((directory / f"ray-{number}").absolute())
        joins = ["--join", start.endpoint, "--nproc", "1", "--run-dir", folder]
        return [sys.executable, "-m", "uneven", "run", *joins, *options, *target]

    def told(what: str) -> None:
        print(f"uneven: {what}", file=sys.stderr)

    with closing(RayLines(line, count, cores=_CORES, again=start.max_restarts, told=told)):
        yield


def misplaced(arguments: Sequence[str], ours: Collection[str], script: str) -> list[str]:
    """Return the script's arguments that are options of uneven (``ours``, with both dashes) and that the script's text
    does not mention. Arguments after ``--`` are ignored."""
    found = []
    for argument in arguments:
        if argument == "--":
            break
        name = argument.partition("=")[0].replace("_", "-")
        if name not in ours or name in found:
            continue
        # Scripts may spell an option with dashes or underscores.
        word = re.sub("[-_]", "[-_]", name.removeprefix("--"))
        if not re.search(rf"(?<![\w-]){word}(?![\w-])", script.replace("--", " ")):
            found.append(name)
    return found


def hint(names: Sequence[str], script: str) -> str:
    several = len(names) > 1
    return (
        f"{', '.join(names)} after {script} {'are arguments' if several else 'is an argument'} of the script: to pass "
        f"{'them' if several else 'it'} to uneven, put {'them' if several else 'it'} before {script}"
    )


_MOST_SHARDS = 1_000
_READY_WITHIN_S = 60.0
_END_BYTES = 1_000_000
"""The bytes of the journal that are read for the last line: about 2,500 records, in a twentieth of a second."""


@first(
    *("--nproc", "--module", "--shares", "--elastic"),
    *("--balance", "--sync", "--run-dir"),
    *("--nnodes", "--node-rank", "--master-addr"),
)
def run(
    context: typer.Context,
    target: options.Script,
    nproc: options.Nproc = None,
    module: options.Module = False,
    shares: options.Shares = None,
    max_restarts: options.MaxRestarts = 0,
    balance: options.Balance = None,
    sync: options.Sync = None,
    seed: options.Seed = None,
    budget: options.Budget = None,
    timeout: options.Timeout = None,
    threads: options.Threads = None,
    keep_freed_memory: options.KeepFreedMemory = None,
    config_file: options.ConfigFile = None,
    run_dir: options.RunDir = None,
    nnodes: options.Nnodes = "1",
    node_rank: options.NodeRank = 0,
    master_addr: options.MasterAddr = "127.0.0.1",
    master_port: options.MasterPort = None,
    rdzv_backend: options.RdzvBackend = None,
    rdzv_endpoint: options.RdzvEndpoint = "",
    rdzv_id: options.RdzvId = "",
    local_addr: options.LocalAddr = None,
    standalone: options.Standalone = False,
    servers: options.Servers = 0,
    tables: options.Tables = 0,
    elastic: options.ElasticBounds = None,
    silence: options.Silence = 10.0,
    join: options.Join = None,
    leave_on: options.LeaveOn = "",
    ray: options.Ray = 0,
    redirects: options.Redirects = "0",
    tee: options.Tee = "0",
    log_rank: options.LogRank = "",
    log_dir: options.LogDir = "",
) -> None:
    """Train SCRIPT on several workers, with torch's own launcher and torchrun's option names.

    Put uneven's options before SCRIPT; arguments after it are passed to the script. If a worker dies, the run ends with
    its exit code. With --elastic, and under asp, ssp, easgd, backup, decoupled, shadow:easgd and shadow:asp, the other
    workers continue. The run directory holds each worker's settings and journal. The last line sums the run up.

    Exit codes: 0 success; 2 wrong setting, before the start; 128 + N stopped by signal N; otherwise that of the worker.

    \b
    Examples:
      uneven run train.py --epochs 5             one worker for each GPU, or one
      uneven run --nproc 4 --shares 0.6,0.4,0.2,0.1 train.py
      uneven run --nproc 4 --balance static:shares=3/2/1/1 train.py
      uneven run --nproc 2 -m package.train
      uneven run --nproc 4 --log-rank 0 --redirects 0:0,1:3,2:3,3:3 train.py
      uneven run --nproc 4 --servers 2 train.py  a parameter server for uneven.runtime.parameter_server.Client
      uneven run --nproc 4 --tables 1 train.py   a server for the tables of uneven.embedding
      uneven run --nproc 4 --elastic 2:8 train.py
      uneven run --join 10.0.0.1:29500 train.py  one additional worker for that run, on another machine
      uneven run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    """
    asked = {"balance": balance, "sync": sync, "seed": seed, "overhead_budget": budget, "timeout_s": timeout}
    asked |= {"threads": threads, "keep_freed_memory": keep_freed_memory}
    layers = layers_of(asked, config_file)
    start = launch.Launch(
        target=tuple(target), module=module, nproc=nproc, nnodes=nnodes, node_rank=node_rank,
        rdzv_backend=rdzv_backend, rdzv_endpoint=rdzv_endpoint, rdzv_id=rdzv_id, master_addr=master_addr,
        master_port=master_port, local_addr=local_addr, standalone=standalone, max_restarts=max_restarts,
        shares=parse_shares(shares), wait_ready=shares is not None, ready_within_s=_READY_WITHIN_S,
        elastic=elastic, silence_s=silence, join=join, leave_on=leave_on,
        output=launch.WorkerOutput(redirects=redirects, tee=tee, ranks=log_rank, directory=log_dir),
    )  # fmt: skip
    # All checks come before the run directory, so that a wrong option leaves nothing behind.
    refuse_misfits(layers, local_workers(start) if start.nodes == (1, 1) else None)
    check(start)
    _hint_at_misplaced(start, {name for one in context.command.params for name in one.opts if name.startswith("--")})
    members = members_of(start, servers=servers, tables=tables)
    # On every machine, because its workers read the settings there; without a shared disk each has its own.
    directory = run_directory(run_dir, target[0], layers, shared=start.nodes[1] > 1, joins=bool(join))
    said = {
        "--balance": balance, "--sync": sync, "--seed": seed, "--overhead-budget": budget, "--timeout": timeout,
        "--threads": threads, "--config": config_file and config_file.absolute(),
    }  # fmt: skip
    with (
        ends_with_a_line(directory, ", so nothing was balanced; or it named another journal"),
        shards(directory, servers, tables, members, start),
        ray_workers(start, ray, directory, said, keep_freed_memory),
    ):
        launch.run(start, run_directory=directory)


def _hint_at_misplaced(start: launch.Launch, ours: set[str]) -> None:
    """Warn about arguments of the script that look like options of uneven."""
    script, *arguments = start.target
    words = "" if start.module else Path(script).read_text(encoding="utf-8", errors="replace")
    if found := misplaced(arguments, ours, words):
        print(f"uneven: {hint(found, script)}", file=sys.stderr)


def members_of(start: launch.Launch, **shards: int) -> int:
    """Return the number of workers that shards are for; 0 without shards. Raises ConfigError for a wrong number of
    shards, or if the number of workers is unknown, or they are on several machines, or they restart."""
    for option, count in shards.items():
        if not 0 <= count <= _MOST_SHARDS:
            raise ConfigError(f"--{option} {count}: each is a process: give 0 to {_MOST_SHARDS:,}")
    asked = [f"--{option} {count}" for option, count in shards.items() if count]
    if not asked:
        return 0
    members = start.nproc or str(len(start.shares) or "")
    if start.join:
        raise ConfigError(f"{' '.join(asked)} with --join: only the launcher with --elastic starts servers")
    if shards.get("servers") and start.max_restarts and not start.elastic:
        raise ConfigError(
            f"{asked[0]} with --max-restarts {start.max_restarts}: the servers keep the model and the steps of the "
            "first start. Leave --max-restarts out, and resume from a checkpoint in a new run"
        )
    if not members.isdigit() or start.nodes != (1, 1):
        raise ConfigError(
            f"{' '.join(asked)} needs a fixed number of workers, on this machine: add --nproc NUMBER; "
            f"for several machines start `python -m uneven.runtime.parameter_server` yourself"
        )
    return int(members)


@contextmanager
def shards(run: Path, servers: int, tables: int, members: int, start: launch.Launch) -> Iterator[None]:
    """Run the shards of a parameter server and the servers of embedding tables as long as the workers. Raises
    LaunchError if they cannot be started."""
    growing = start.elastic is not None
    with ExitStack() as stack:
        if servers or tables:
            from uneven.runtime.messages.keys import SERVER
            from uneven.runtime.messages.process import ShardKeeper
            from uneven.runtime.messages.sockets import LOOPBACK

            # Workers on other machines may join, so the shards listen where the run's store does. They need IPv4.
            host = start.meeting[0] if growing and not start.alone else ""
            bind = f"tcp://{socket.gethostbyname(host)}" if host and ":" not in host else LOOPBACK
        if servers:
            stack.enter_context(ShardKeeper(run / SERVER, servers, members, bind=bind, growing=growing))
        if tables:
            from uneven.embedding.table_host import PROGRAM, TABLES

            stack.enter_context(ShardKeeper(run / TABLES, tables, members, bind=bind, program=PROGRAM))
        yield


def run_directory(
    asked: Path | None, script: str, layers: rundir.Layers, *, shared: bool = False, joins: bool = False
) -> Path:
    """Make the run directory and print its path; ``shared`` and ``joins`` are those of :func:`rundir.create`."""
    directory = asked or rundir.new_path(script, datetime.now())
    rundir.create(directory, layers, shared=shared, joins=joins)
    print(f"uneven: run directory {directory} (follow it with `uneven watch {quote(str(directory))}`)", file=sys.stderr)
    return directory


@contextmanager
def ends_with_a_line(directory: Path, so: str = "") -> Iterator[None]:
    """Print a one-line summary of the run at its end, or a note that it has no journal, with the consequence ``so``."""
    none = ""
    try:
        yield
        none = f"uneven: no journal in {directory}: the script made no uneven.Session(){so}"
    finally:
        if line := _end_of(directory) or none:
            print(line, file=sys.stderr)


def _end_of(directory: Path) -> str:
    state = RunProgress()
    try:
        # The end of each journal is enough for a summary, so all ranks share a fixed number of bytes.
        follower = Follower(directory, _END_BYTES // max(1, ranks := len(rank_paths(directory))))
        state.feed(follower.poll())
    except JournalError as error:
        return f"uneven: the run cannot be summed up: {error}"
    return f"uneven: {one_line(state, whole=follower.whole)} → uneven watch {quote(str(directory))}" if ranks else ""


def layers_of(asked: dict[str, Any], config_file: Path | None) -> rundir.Layers:
    """Return the settings of command line and file, checked before any process starts; print conflicts. Raises
    ConfigError for a wrong value or an unsupported policy, UnknownNameError for an unknown name or key."""
    said = {key: value for key, value in asked.items() if value is not None}
    layers = {rundir.COMMAND_LINE: said, **rundir.file_layer(config_file)}
    settings, conflicts = run_config.merge(layers)
    for values in layers.values():
        # Each layer's names must exist, even if a stronger layer overrides them.
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


def refuse_misfits(layers: rundir.Layers, workers: int | None) -> None:
    """Check that the given settings fit each other and the number of workers (None if unknown); the workers would find
    the same errors. Raises ConfigError with an alternative."""
    settings, _ = run_config.merge(layers)
    source = {key: where for where, values in reversed(layers.items()) for key in values}
    sync = settings.sync if "sync" in source else None
    balance = settings.balance if "balance" in source else "even"
    wanted = balancers.resolve(balance).made_for
    # A single worker has nothing to share; its session warns about a balancer from a file that is for others.
    meant = workers != 1 or source.get("balance") == rundir.COMMAND_LINE
    if None not in (wanted, workers) and wanted != workers and meant:
        raise ConfigError(
            f"{source['balance']}: balance = {describe(balance)} is for {wanted} workers, and this run has {workers}: "
            f"give one share per worker, or start {wanted}"
        )
    senseless = threaded(sync, balance, settings.threads, workers or 2)
    if sync is not None and "balance" in source:
        senseless = senseless or compatible(sync, balance) or unheeded(sync, balance)
    if senseless:
        raise ConfigError(senseless)


def parse_shares(text: str | None) -> tuple[float, ...]:
    """Return the shares of a core, as typed. Raises ConfigError if one of them is not a number."""
    try:
        return tuple(float(part) for part in (text or "").replace("/", ",").split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--shares {text}: give one number per worker, for instance 0.6,0.4,0.2,0.1") from None
