"""The launcher of a run with a fixed number of workers, on one machine or several. It reports failures in one line.

When an indispensable worker dies, it ends the others, and starts all of them again as often as ``--max-restarts`` says.
The run continues without a worker that marked itself expendable (:func:`uneven.runtime.rundir.mark_expendable`).
"""

import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.elastic.utils.api import macros

from uneven.errors import LaunchError, UnevenError, access
from uneven.runtime.jobs import Command, Events, How, Stop
from uneven.runtime.launch.expendable import ExpendableWorkers
from uneven.runtime.launch.failure import Death, all_gone, blame, gone, left_alone, stopped_by, through_without
from uneven.runtime.launch.launch_spec import DEFAULT_PORT, Launch, run_id
from uneven.runtime.launch.local_workers import CoreShares, LocalWorker, LocalWorkers
from uneven.runtime.launch.output import WorkerOutput
from uneven.runtime.launch.preflight import check, local_workers
from uneven.runtime.launch.rendezvous import rendezvous
from uneven.runtime.launch.worker_env import role, shutdown_within_s, variables
from uneven.runtime.system import KILL, signals
from uneven.runtime.tcp_store import fail_after
from uneven.runtime.temp_dir import SHARD_FOLDER, TemporaryFolder, remove_left
from uneven.runtime.timeout_call import within

_log = logging.getLogger(__name__)

_ROLE = "default_role"  # torchrun's name of the only kind of workers
_OTHERS_END_WITHIN_S = 300.0
_SAYS_WITHIN_S = 1.0  # until a launcher has written into the store that it has ended
_LOOK_EVERY_S = 0.1

_MEETING_ERRORS = (RendezvousError, UnevenError, RuntimeError, ValueError, OSError)

T = TypeVar("T")


def run_fixed(launch: Launch, run_directory: Path | None) -> None:
    """See :func:`uneven.runtime.launch.run`."""
    check(launch)
    count = local_workers(launch)
    if run_directory is not None:
        run_directory = run_directory.absolute()  # a worker may change its working directory
    with ExitStack() as stack:
        events = stack.enter_context(Events())
        stop = stack.enter_context(Stop(lambda number: events.wake(), signals("SIGQUIT")))
        try:
            folder = TemporaryFolder("uneven-launch-")  # for the workers' error files
            stack.callback(folder.remove)
            stack.callback(remove_left, SHARD_FOLDER)  # left behind if a signal killed rank 0
            logs = _logs(launch.output, count, run_directory, folder.path)
            shares = CoreShares(launch, run_directory)
            stack.callback(shares.close)
            workers = FixedWorkers(launch, count, run_directory, logs, events, stop)
            stack.callback(workers.close)
            workers.run(shares)
        except OSError as error:  # torch creates folders below this one
            where = f" {error.filename}" if error.filename else ""
            raise LaunchError(
                f"the launcher cannot use{where or ' its temporary folder'}: {error.strerror or error}; free some "
                "space there (see `df` and `df -i`), or set TMPDIR to another folder"
            ) from error
        except (RendezvousError, DistNetworkError, DistStoreError) as error:
            raise LaunchError(
                f"the workers could not meet at {launch.rendezvous_endpoint} ({launch.backend}): {error}. Can every "
                "machine reach that address, and does each run a launcher?"
            ) from error


class FixedWorkers(LocalWorkers):
    """All workers of this launcher, which are started and restarted together."""

    def __init__(
        self, launch: Launch, count: int, run_directory: Path | None, logs: DefaultLogsSpecs, events: Events, stop: Stop
    ) -> None:
        super().__init__(events)
        self._launch = launch
        self._count = count
        self._variables = variables(launch, count, run_directory)
        self._logs = logs
        self._stop = stop
        self._expendable = ExpendableWorkers(run_directory, throttled=bool(launch.shares))
        self._port = 0
        self._restarts = 0
        self._ending = False
        self._failed: list[LocalWorker] = []
        self._tails: list[TailLog] = []

    def run(self, shares: CoreShares) -> None:
        """Run the workers until they have finished.

        Raises LaunchError after a failure without restarts left, and after a signal.
        """
        name = run_id(self._launch)
        handler = self._apart(lambda: rendezvous(self._launch, name))
        try:
            while self._again(handler, shares):
                pass
        finally:
            if not self._stop.requests:  # after a signal, other machines may still use it
                handler.shutdown()
        lost, left = self._expendable.lost.values(), self._expendable.left.values()
        error = self._failure("so the run has been ended") or left_alone(tuple(lost), tuple(left))
        if error is not None:
            raise error
        if lost:
            said, code = through_without(tuple(lost))
            if code:
                raise LaunchError(said, code)
            _log.warning(said)

    def ended(self, worker: LocalWorker) -> None:
        ending = worker.process.ending
        if ending is not None and ending.how is How.ENDED:
            if not self._ending:
                self._expendable.leaves(worker.rank, worker.pid)
        elif self._ending or not self._expendable.bears(worker.rank):
            self._failed.append(worker)
        else:
            death = self._death(worker)
            self._expendable.lost[worker.rank] = death
            _log.warning(gone(death))

    def close(self) -> None:
        """End all workers, and show the rest of their output."""
        self.kill()
        for tail in self._tails:
            tail.stop()

    def _again(self, handler: RendezvousHandler, shares: CoreShares) -> bool:
        """Run all workers until they have ended; return whether they are started again."""
        found = self._apart(handler.next_rendezvous)
        world = self._begin(handler, found)
        while self.running and not self._failed:
            self._events.wait(_LOOK_EVERY_S)
            self._end_after_signal()
            shares.look(self.running.values(), self._port)
            if world > 1:  # no other worker depends on a single one
                for rank in self._expendable.hanging(self._pids):
                    self.running[rank].process.signal(KILL, group=True)
            if not self._failed and handler.num_nodes_waiting() > 0:
                _log.info("another machine joins: all workers are started again")
                self._end(signal.SIGTERM)
                return True
        # A stopped process does not react to SIGTERM, and it may have caused the failure.
        for rank in self._expendable.missed(self._pids) if self._failed else ():
            self.running[rank].process.signal(KILL, group=True)
        self._end(signal.SIGTERM)
        self._end_after_signal()
        left = self._launch.max_restarts - self._restarts
        error = self._failure(
            f"so all workers are started again ({left - 1} of {self._launch.max_restarts} restarts left)"
        )
        if error is None or (not self._failed and found.world_size > 1):
            self._await_others(found)
        elif left > 0:
            self._restarts += 1
            _log.warning(str(error))
            return True
        return False

    def _begin(self, handler: RendezvousHandler, found: RendezvousInfo) -> int:
        """Start all workers of this machine; return how many all machines have."""
        counts = self._apart(lambda: _counts(found, self._count))
        first, world = sum(counts[: found.rank]), sum(counts)
        where = found.bootstrap_store_info
        assert where is not None
        self._port = where.master_port
        common = {
            **self._variables,
            "GROUP_RANK": str(found.rank),
            "GROUP_WORLD_SIZE": str(found.world_size),
            "LOCAL_WORLD_SIZE": str(self._count),
            "MASTER_ADDR": where.master_addr,
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(self._launch.max_restarts),
            "TORCHELASTIC_RUN_ID": handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": str(handler.use_agent_store),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        envs = {
            place: {**common, "LOCAL_RANK": str(place), **role(_ROLE, first + place, world)}
            for place in range(self._count)
        }
        self._ending = False
        self._failed.clear()
        self._expendable.begin(range(first, first + self._count))
        files = self._logs.reify(envs)
        self._tails = [
            TailLog(_ROLE, files.tee_stdouts, sys.stdout).start(),
            TailLog(_ROLE, files.tee_stderrs, sys.stderr).start(),
        ]
        for place, env in envs.items():
            with ExitStack() as stack:
                stdout, stderr = (
                    stack.enter_context(Path(path).open("wb")) if path else None
                    for path in (files.stdouts[place], files.stderrs[place])
                )
                line = macros.substitute(self._launch.line, str(place))
                error_file = Path(files.error_files[place])
                self.start(first + place, place, line, env, error_file, stdin=None, stdout=stdout, stderr=stderr)
        return world

    def _await_others(self, found: RendezvousInfo) -> None:
        """Wait until the workers of all machines have finished: they may need the store of this one."""
        keys = [f"finished/{one}" for one in range(found.world_size)]
        within_s = self._others_end_within_s
        port = parse_rendezvous_endpoint(self._launch.rendezvous_endpoint, default_port=DEFAULT_PORT)[1]
        fail_after(port, within_s)  # the machine of the store may be the one that has failed

        def wait() -> None:
            found.store.set(keys[found.rank], "")
            found.store.wait(keys, timedelta(seconds=within_s))

        try:
            self._apart(wait)
        except DistNetworkError:
            return  # the launcher with the store has ended
        except DistStoreError:
            late = ", ".join(str(one) for one, key in enumerate(keys) if not found.store.check([key]))
            _log.warning(f"machine {late} has not finished within {within_s:g} s")

    @property
    def _others_end_within_s(self) -> float:
        if len(self._expendable.lost) == self._count and not self._keeps_store:
            return _SAYS_WITHIN_S
        # By then the others have finished, too, or given up.
        return min(_OTHERS_END_WITHIN_S, self._expendable.waits_s or _OTHERS_END_WITHIN_S)

    @property
    def _keeps_store(self) -> bool:
        return self._launch.backend != "static" or self._launch.node_rank == 0

    @property
    def _pids(self) -> dict[int, int]:
        return {rank: one.pid for rank, one in self.running.items()}

    def _death(self, worker: LocalWorker) -> Death:
        return worker.death(
            stops=self._expendable.stops(worker.rank),
            silent=self._expendable.silent.get(worker.rank, ""),
            shown=not self._launch.output.asked,
        )

    def _failure(self, then: str) -> LaunchError | None:
        """Return the error of the worker that died first, unless the run could finish without it."""
        lost = tuple(self._expendable.lost.values())
        if self._failed:
            # The run survived the workers in `lost`, so their earlier ends are not the cause of this failure.
            deaths = [self._death(one) for one in self._failed]
            first_s = min(one.ended_s for one in deaths)
            left = tuple(self._expendable.left.values())
            return blame(
                deaths, first_s=first_s, shutdown_within_s=shutdown_within_s(), lost=lost, left=left, then=then
            )
        return all_gone(lost, here=self._launch.nodes[1] > 1) if len(lost) == self._count else None

    def _end(self, number: int) -> None:
        """End all workers with a signal; another signal to this process means immediately."""
        self._ending = True
        before = min(self._stop.requests, 1)

        def ask(process: Command) -> None:
            for one in (number, *signals("SIGCONT")):
                process.signal(one, group=True)

        self.end(ask, shutdown_within_s(), lambda: self._stop.requests > before)
        self.close()

    def _end_after_signal(self) -> None:
        """Raise LaunchError if this process has been asked to stop; all workers have ended by then."""
        if self._stop.requests:
            self._end(self._stop.number)
            raise stopped_by(self._stop.number)

    def _apart(self, work: Callable[[], T]) -> T:
        """Return or raise the outcome of ``work``, which may wait for other machines, unless a signal arrives."""
        return within(math.inf, work, self._end_after_signal, _MEETING_ERRORS)


def _counts(found: RendezvousInfo, count: int) -> list[int]:
    """Return the numbers of workers of all machines; this one has ``count``."""
    found.store.set(f"workers/{found.rank}", str(count))
    return [int(found.store.get(f"workers/{one}")) for one in range(found.world_size)]


def _logs(output: WorkerOutput, count: int, run_directory: Path | None, temporary: Path) -> DefaultLogsSpecs:
    """Return torch's log specification; without requested files, only workers' error files go to ``temporary``."""
    output.check(count)
    folder = temporary
    if output.in_files:
        folder = output.folder(run_directory).absolute()
        _log.info(f"the output of workers is in {folder}")
    redirects, tee = ({rank: Std(of) for rank, of in one.items()} for one in output.streams(count))
    with access(f"write to {folder} (another folder can be named with --log-dir)", LaunchError):
        return DefaultLogsSpecs(str(folder), redirects=redirects, tee=tee, local_ranks_filter=output.shown)
