"""The launcher built on torch's elastic agent. It watches the workers and reports failures in one line."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from uneven.errors import LaunchError, access
from uneven.runtime.jobs.parent_death import bound
from uneven.runtime.launch.elastic_launch import run_agent
from uneven.runtime.launch.expendable import ExpendableWorkers
from uneven.runtime.launch.failure import Death, all_gone, blame, gone, left_alone, through_without, told_by
from uneven.runtime.launch.hang_detection import STOPPED
from uneven.runtime.launch.launch_spec import Launch, run_id
from uneven.runtime.launch.output import WorkerOutput
from uneven.runtime.launch.preflight import check, local_workers
from uneven.runtime.launch.worker_env import environment, shutdown_within_s, variables, watched
from uneven.runtime.temp_dir import SHARD_FOLDER, TemporaryFolder, remove_left


def run(launch: Launch, run_directory: Path | None) -> None:
    """See :func:`uneven.runtime.launch.run`."""
    check(launch)
    count = local_workers(launch)
    if run_directory is not None:
        run_directory = run_directory.absolute()  # a worker may change its working directory
    with ExitStack() as stack:
        try:
            folder = TemporaryFolder("uneven-launch-")  # for the workers' error files
        except OSError as error:
            raise _no_room(error) from error
        stack.callback(folder.remove)
        stack.callback(remove_left, SHARD_FOLDER)  # left behind if a signal killed rank 0
        config = _config(launch, count, _output(launch.output, count, run_directory, folder.path))
        stack.enter_context(environment(variables(launch, count, run_directory)))
        stack.enter_context(_quiet_logs(launch.max_restarts))
        workers = stack.enter_context(watched(launch, config.run_id, count, run_directory))
        expendable = ExpendableWorkers(run_directory, throttled=bool(launch.shares))

        def death_of(rank: int, failure: ProcessFailure) -> Death:
            data: Any = failure.error_file_data
            killed = failure.exitcode == -signal.SIGKILL
            return Death(
                rank=rank,
                pid=failure.pid,
                exit_code=failure.exitcode,
                ended_s=workers.ended_s.get(failure.pid, math.inf),
                told=told_by(data.get("message") if isinstance(data, dict) else None),
                stops=expendable.stops(rank),
                silent=expendable.silent.get(rank, STOPPED if killed and rank in expendable.stopped else ""),
                shown=not launch.output.asked,
            )

        def lost(rank: int, failure: ProcessFailure) -> None:
            death = death_of(rank, failure)
            expendable.lost[rank] = death
            print(f"uneven: {gone(death)}", file=sys.stderr)

        try:
            words = [sys.executable, "-u", *(["-m"] if launch.module else []), *launch.target]
            program, *arguments = bound(words)
            failures = run_agent(config, program, arguments, here=launch.here, expendable=expendable, on_lost=lost)
            _end({rank: death_of(rank, one) for rank, one in failures.items()}, expendable, workers.ended_s, count)
        except (SignalException, KeyboardInterrupt) as error:
            number = error.sigval if isinstance(error, SignalException) else signal.SIGINT
            name = signal.Signals(number).name
            raise LaunchError(f"stopped by {name}; all workers have ended", 128 + number) from None
        except OSError as error:  # torch's launcher creates folders below this one
            raise _no_room(error) from error
        except (RendezvousError, DistNetworkError, DistStoreError) as error:
            raise LaunchError(
                f"the workers could not meet at {config.rdzv_endpoint} ({config.rdzv_backend}): {error}. "
                f"Is that address right and reachable from every machine, and does each run a launcher?"
            ) from error


def _no_room(error: OSError) -> LaunchError:
    where = f" {error.filename}" if error.filename else ""
    return LaunchError(
        f"the launcher cannot use{where or ' its temporary folder'}: {error.strerror or error}; make room there (space "
        f"and inodes, see `df` and `df -i`), or name another folder with TMPDIR"
    )


def _config(launch: Launch, count: int, logs_specs: DefaultLogsSpecs) -> LaunchConfig:
    backend = launch.rdzv_backend or "static"
    values: dict[str, Any] = {
        "min_nodes": launch.nodes[0],
        "max_nodes": launch.nodes[1],
        "nproc_per_node": count,
        "run_id": run_id(launch),
        "rdzv_backend": backend,
        "rdzv_endpoint": launch.endpoint if backend == "static" else launch.rdzv_endpoint,
        "rdzv_configs": {"rank": launch.node_rank} if backend == "static" else {},
        "max_restarts": launch.max_restarts,
        "local_addr": launch.local_addr,
        "logs_specs": logs_specs,  # without it, LaunchConfig creates an empty temporary folder
        "shutdown_timeout": shutdown_within_s(),
    }
    known = {field.name for field in dataclasses.fields(LaunchConfig)}  # torch 2.9 lacks shutdown_timeout
    return LaunchConfig(**{key: value for key, value in values.items() if key in known})


def _output(output: WorkerOutput, count: int, run_directory: Path | None, temporary: Path) -> DefaultLogsSpecs:
    """Return torch's log specification; without requested files, only workers' error files go to ``temporary``."""
    output.check(count)
    folder = temporary
    if output.in_files:
        folder = output.folder(run_directory).absolute()
        print(f"uneven: what workers print goes to {folder}", file=sys.stderr)
    redirects, tee = ({rank: Std(of) for rank, of in one.items()} for one in output.streams(count))
    with access(f"write to {folder} (another folder can be named with --log-dir)", LaunchError):
        return DefaultLogsSpecs(str(folder), redirects=redirects, tee=tee, local_ranks_filter=output.shown)


@contextmanager
def _quiet_logs(max_restarts: int) -> Iterator[None]:
    """Silence torch's launcher, whose errors this launcher reports more briefly; keep its messages about restarts."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", *names)]
    before = [logger.level for logger in loggers]
    for logger in loggers if max_restarts == 0 else ():
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _end(ends: Mapping[int, Death], expendable: ExpendableWorkers, ended_s: Mapping[int, float], count: int) -> None:
    """Report the worker that died first, in one line; raise LaunchError unless the run could finish without it."""
    lost, left = tuple(expendable.lost.values()), tuple(expendable.left.values())
    if deaths := [one for rank, one in ends.items() if rank not in expendable.lost]:
        # The run survived the workers in `lost`, so their earlier ends are not the cause of this failure.
        lost_pids = {one.pid for one in lost}
        first_s = min((ended for pid, ended in ended_s.items() if pid not in lost_pids), default=0.0)
        raise blame(deaths, first_s=first_s, shutdown_within_s=shutdown_within_s(), lost=lost, left=left)
    if len(lost) == count:
        raise all_gone(lost)
    if (error := left_alone(lost, left)) is not None:
        raise error
    if lost:
        said, code = through_without(lost)
        if code:
            raise LaunchError(said, code)
        print(f"uneven: {said}", file=sys.stderr)
