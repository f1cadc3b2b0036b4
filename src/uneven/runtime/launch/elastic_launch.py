"""torch's elastic agent, extended so that a run can continue without an expendable worker.

torch watches the workers until one of them marks itself expendable (:func:`uneven.runtime.rundir.mark_expendable`).
From then
on this agent watches, and consults torch only after an indispensable worker has died.

torch's agent owns these processes: it holds their only handles and restarts all of them together with the rendezvous.
:class:`uneven.runtime.launch.local_workers.Workers` therefore only observes them; a second owner would race for their
exit
codes.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from uneven.runtime.launch.expendable import ExpendableWorkers
from uneven.runtime.launch.local_rendezvous import LocalRendezvous

_SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"  # torch's own


class Agent(LocalElasticAgent):
    """torch's agent with `expendable` workers; it calls `on_lost` with each one whose death the run tolerates."""

    def __init__(
        self, *args: Any, expendable: ExpendableWorkers, on_lost: Callable[[int, ProcessFailure], None], **kw: Any
    ) -> None:
        super().__init__(*args, **kw)
        self._expendable = expendable
        self._on_lost = on_lost

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._expendable.begin([one.global_rank for one in worker_group.workers])
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        context = self._pcontext
        if not isinstance(context, SubprocessContext):
            return super()._monitor_workers(worker_group)
        ranks = {one.local_rank: one.global_rank for one in worker_group.workers}
        ended = {
            local: code for local, one in context.subprocess_handlers.items() if (code := one.proc.poll()) is not None
        }
        alive = {ranks[local]: pid for local, pid in context.pids().items() if local not in ended}
        for local, code in ended.items():
            if code == 0:
                self._expendable.leaves(ranks[local], context.subprocess_handlers[local].proc.pid)
        if not self._expendable.spoken:
            # torch's own verdict, but stopped workers are killed first.
            return self._failed(worker_group, alive) if any(ended.values()) else super()._monitor_workers(worker_group)
        for local, code in ended.items():
            if code == 0 or ranks[local] in self._expendable.lost:
                continue
            if not self._expendable.bears(ranks[local]):
                return self._failed(worker_group, alive)  # torch ends all workers and reports the failure
            pid = context.subprocess_handlers[local].proc.pid
            _kill(pid)  # its group: processes that it started and left behind
            self._on_lost(ranks[local], ProcessFailure(local, pid, code, context.error_files[local]))
        if len(ranks) > 1 or worker_group.group_world_size != 1:  # no other worker depends on a single one
            for rank in self._expendable.hanging(alive):
                _kill(alive[rank])  # the next call finds it dead and reports it
        if alive:
            return RunResult(state=WorkerState.HEALTHY)
        if all(rank in self._expendable.lost for rank in ranks.values()) and worker_group.group_world_size == 1:
            return super()._monitor_workers(worker_group)  # no worker is left: torch reports the failure
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks.values()))

    def _failed(self, worker_group: WorkerGroup, alive: Mapping[int, int]) -> RunResult:
        # A stopped process does not react to torch's SIGTERM, and torch would wait for its full grace period.
        for rank in self._expendable.missed(alive):
            _kill(alive[rank])
        result: RunResult = super()._monitor_workers(worker_group)
        return result


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM if only zombies are left
        os.killpg(group, signal.SIGKILL)


def _meeting(config: LaunchConfig) -> RendezvousHandler:
    meeting = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    return rendezvous_registry.get_rendezvous_handler(meeting)


def run_agent(
    config: LaunchConfig,
    program: str,
    args: Sequence[str],
    *,
    here: tuple[str, int] | None,
    expendable: ExpendableWorkers,
    on_lost: Callable[[int, ProcessFailure], None],
) -> dict[int, ProcessFailure]:
    """Do what ``torch.distributed.launcher.api.launch_agent`` does, with an :class:`Agent`; ``here``: the local
    rendezvous.

    Return rank → failure of each indispensable worker and of those ended because of it. Raise SignalException on a
    signal, and RendezvousError, DistNetworkError or DistStoreError if the machines do not meet.
    """
    handler = _meeting(config) if here is None else LocalRendezvous(*here, config.run_id)
    addr, port = None, None
    if config.rdzv_backend == "static" and here is None:
        addr, port = parse_rendezvous_endpoint(config.rdzv_endpoint.strip(), default_port=-1)
    os.environ[_SIGNALS_VARIABLE] = config.signals_to_handle
    # The two classes share most fields, and which ones depends on torch's version.
    alike = {one.name for one in dataclasses.fields(WorkerSpec)} & {one.name for one in dataclasses.fields(config)}
    spec = WorkerSpec(
        local_world_size=config.nproc_per_node,
        rdzv_handler=handler,
        entrypoint=program,
        args=tuple(args),
        master_addr=addr,
        master_port=port,
        **{name: getattr(config, name) for name in alike},
    )
    within = getattr(config, "shutdown_timeout", None)  # torch 2.9 lacks it
    agent = Agent(
        spec=spec,
        logs_specs=config.logs_specs,
        start_method=config.start_method,
        expendable=expendable,
        on_lost=on_lost,
        **({} if within is None else {"shutdown_timeout": within}),
    )
    stopped = False
    try:
        return dict(agent.run().failures)
    except SignalException:
        stopped = True  # keep the rendezvous open: other machines may still use it
        raise
    finally:
        if not stopped:
            handler.shutdown()
