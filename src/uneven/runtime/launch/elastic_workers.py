"""The launcher of an elastic run, whose workers may leave and join. It reports each death in the run's store
immediately.

With ``--join``, another process keeps the store: ``uneven store``, or the launcher with ``--elastic``.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError

from uneven.errors import LaunchError
from uneven.runtime.jobs import Command, Ending, Events, How, Stop
from uneven.runtime.launch.failure import Death, all_gone, blame, gone, stopped_by
from uneven.runtime.launch.hang_detection import STOPPED, stopped
from uneven.runtime.launch.launch_spec import Launch, address, run_id
from uneven.runtime.launch.local_workers import CoreShares, LocalWorker, LocalWorkers
from uneven.runtime.launch.preflight import JOINED_WITHIN_S, check, local_workers
from uneven.runtime.launch.remote_workers import THROUGH, Others, RemovedWorkers, settled
from uneven.runtime.launch.rendezvous import keep_store, towards
from uneven.runtime.launch.store_server import open_run
from uneven.runtime.launch.worker_env import shutdown_within_s, variables
from uneven.runtime.membership_board import RUN, WORKERS, Board
from uneven.runtime.system import KILL
from uneven.runtime.tcp_store import reach
from uneven.runtime.temp_dir import TemporaryFolder
from uneven.runtime.timeout_call import within
from uneven.runtime.world import ELASTIC_VARIABLE, LEAVE_VARIABLE, is_loopback, signals_named

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2
_GIVEN_UP_EVERY_S = 1.0


class Members(LocalWorkers):
    """The workers of this launcher in an elastic run. ``cut`` is True when the store has ended."""

    def __init__(
        self,
        board: Board,
        line: list[str],  # program and arguments of a worker
        variables: Callable[[int, int], dict[str, str]],  # (worker, local rank) → its environment
        folder: Path,
        events: Events,
        on_lost: Callable[[Death], None],  # called with each abnormal end
    ) -> None:
        super().__init__(events)
        self.lost: list[Death] = []
        self.finished: list[int] = []
        self.cut = False
        self._board = board
        self._line = line
        self._variables = variables
        self._folder = folder
        self._on_lost = on_lost
        self._given_up = RemovedWorkers(board, shutdown_within_s())

    def end_overdue(self, now_s: float) -> None:
        """Kill workers that the membership has removed and that have not ended themselves."""
        for worker in self._given_up.overdue(list(self.running), now_s):
            one = self.running[worker]
            how = f"it {STOPPED}" if stopped(one.pid) else "it did not end by itself"
            one.killed_by = f"the others had removed it, and {how}"
            one.process.signal(KILL)

    def add(self, worker: int) -> None:
        """Start a worker."""
        # The lowest free local rank, so that a replacement takes the place (device, share) that became free.
        taken = {one.place for one in self.running.values()}
        place = next(one for one in range(len(taken) + 1) if one not in taken)
        self.start(worker, place, self._line, self._variables(worker, place), self._folder / f"{worker}.json")

    def ended(self, worker: LocalWorker) -> None:
        ending = worker.process.ending
        assert ending is not None
        try:
            if self._in_order(worker.rank, ending):
                return
        except RuntimeError:
            self.cut = True  # the store has ended with the process that kept it; a lost worker reports that itself
            if ending.how is How.ENDED:
                self.finished.append(worker.rank)
                return
        self.lost.append(worker.death())
        self._on_lost(self.lost[-1])

    def _in_order(self, worker: int, ending: Ending) -> bool:
        """Return whether an ended worker is not missed; otherwise report its death to all members."""
        end = self._given_up.closed.get(worker, "") if ending.how is How.ENDED else ""
        end = end or settled(self._board, worker, ending)  # `closed` first: the store may have ended since
        if end == THROUGH:
            self.finished.append(worker)
        return bool(end)


def run_members(launch: Launch, run_directory: Path | None) -> None:
    """Run the workers of ``launch.elastic`` or ``launch.join``; see :func:`uneven.runtime.launch.run`, also for
    errors."""
    check(launch)
    with ExitStack() as stack:
        folder = TemporaryFolder("uneven-launch-")
        stack.callback(folder.remove)
        count = local_workers(launch)
        try:
            store, host, port, run = _join(launch) if launch.join else _open(launch, count, run_directory)
        except (DistNetworkError, DistStoreError, RuntimeError, TimeoutError) as error:
            short = str(error).strip().partition("\n")[0]  # torch appends its C++ stack
            raise LaunchError(
                f"no run at {launch.join or launch.endpoint} ({short}): give the address that its launcher printed"
            ) from error
        name = run_id(launch)
        own_address = launch.local_addr or towards(host, port)
        address = "" if is_loopback(own_address) else f":{own_address}"
        board = Board(store)

        def own_variables(worker: int, place: int) -> dict[str, str]:
            return {
                **variables(launch, count, run_directory),
                "RANK": str(worker),
                "WORLD_SIZE": str(run["founders"]),
                "LOCAL_RANK": str(place),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": host,
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": name,
                ELASTIC_VARIABLE: run["elastic"] + address,
                LEAVE_VARIABLE: launch.leave_on,
            }

        events = stack.enter_context(Events())
        restarts = launch.max_restarts
        stop = stack.enter_context(Stop(lambda number: events.wake(), signals_named(launch.leave_on, "--leave-on")))

        def lost(death: Death) -> None:
            nonlocal restarts
            _log.warning(gone(death))
            if restarts > 0 and not stop.requests and not members.cut and board.look("over") is None:
                restarts -= 1
                members.add(board.count(WORKERS, 1) - 1)

        members = Members(board, launch.line, own_variables, folder.path, events, lost)
        stack.callback(members.end, Command.ask_to_end, shutdown_within_s())
        shares = CoreShares(launch, run_directory)
        stack.callback(shares.close)
        for worker in run["own"]:
            members.add(worker)
        while members.running:
            events.wait(_LOOK_EVERY_S if launch.shares else _GIVEN_UP_EVERY_S)
            members.end_overdue(time.monotonic())
            shares.look(members.running.values(), port)
            if stop.requests:
                members.end(Command.ask_to_end, shutdown_within_s(), lambda: stop.requests > 1)
        if not launch.join:
            _await_others(board, _silence_of(run), events, stop)
        over = _over(board) if members.lost else None
        _end(members, stop, through=not launch.join and over is True, goes_on=bool(launch.join) and over is False)


def _await_others(board: Board, silence_s: float, events: Events, stop: Stop) -> None:
    others, said = Others(board, silence_s), False  # they need the store until they have finished
    while not stop.requests and (there := others.there(time.monotonic())):
        if not said and board.look("over") is None:
            words = f"worker {', '.join(map(str, there))}"
            _log.warning(f"no worker of this launcher is left; it keeps the run's store for {words}")
            said = True
        events.wait(_LOOK_EVERY_S)


def _silence_of(run: Mapping[str, Any]) -> float:
    """Return how long a member may send no heartbeat, in seconds; 0 is forever."""
    return float(run["elastic"].split(":")[2])


def _over(board: Board) -> bool | None:
    """Return whether workers have finished the training; None if the store has ended."""
    try:
        return board.look("over") is not None
    except RuntimeError:
        return None


def _end(members: Members, stop: Stop, *, through: bool, goes_on: bool) -> None:
    """Report how the run ended: finished by any launcher's workers (``through``), continued elsewhere, or an error."""
    if stop.requests:
        raise stopped_by(stop.number)
    if through or members.finished or not members.lost:
        if members.lost:
            _log.info(f"the run has finished; lost workers: {len(members.lost)}")
        return
    # The same signal ended all workers, so the order of their deaths does not show the cause.
    if len(members.lost) > 1 and all(one.exit_code == members.lost[0].exit_code < 0 for one in members.lost):
        raise all_gone(members.lost)
    first_s = min(one.ended_s for one in members.lost)
    then = "and no worker of this launcher is left; the run continues" if goes_on else "so the run has been ended"
    raise blame(members.lost, first_s=first_s, shutdown_within_s=shutdown_within_s(), then=then)


def _open(launch: Launch, count: int, run_directory: Path | None) -> tuple[Any, str, int, dict[str, Any]]:
    host, port = launch.meeting
    store, port = keep_store(host, port)
    store.add(WORKERS, count)  # before others can join: their numbers follow
    run = open_run(store, count, launch.bounds, launch.silence_s)
    # In one directory, on one machine or a shared disk, `uneven watch` sees all workers.
    where = "" if run_directory is None else f" --run-dir {quote(str(run_directory))}"
    _log.info(f"others join with `uneven run --join {host}:{port}{where} {launch.target[0]}`")
    return store, host, port, {**run, "own": range(count)}


def _join(launch: Launch) -> tuple[Any, str, int, dict[str, Any]]:
    assert launch.join is not None
    host, port = address(launch.join, launch.join)
    # TCPStore ignores its timeout if a foreign server accepts the connection and sends nothing, so use `within`.
    run = json.loads(within(JOINED_WITHIN_S, lambda: reach(host, port, JOINED_WITHIN_S)).get(RUN))
    store = reach(
        host, port, JOINED_WITHIN_S, _silence_of(run)
    )  # a cut connection raises no error, so requests need this limit
    if store.check(["over"]):
        raise LaunchError(f"--join {launch.join}: the run has already finished")
    own = [store.add(WORKERS, 1) - 1 for _ in range(local_workers(launch))]
    return store, host, port, {**run, "own": own}
