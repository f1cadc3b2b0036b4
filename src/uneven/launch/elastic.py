"""torch's elastic agent, which lets the others go on without a worker whose policy can do without it.

As long as no worker of this machine has said what its death means (:func:`uneven.rundir.mark_expendable`), torch
watches the workers by itself, and ends all when one dies. From then on we look, and torch is asked only once somebody
has died whom the others cannot do without.

These workers are torch's processes, not those of :mod:`uneven.jobs`: its agent starts them, holds the only handles,
waits for them and starts all anew after a failure, together with the meeting of the machines. A second owner could
only race with it for their exit codes. So :class:`uneven.launch.workers.Workers` finds them among the children and
listens to their ends. That they end with the launcher is the promise of :mod:`uneven.jobs.bound`, as for everybody.
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

from uneven.launch.expendable import ExpendableWorkers
from uneven.launch.here import Here

_SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"  # torch's own


class Agent(LocalElasticAgent):
    """See the module.

    Args:
        expendable: who can be done without, and who has been.
        on_lost: called with each worker without whom the others go on.
    """

    def __init__(
        self, *args: Any, expendable: ExpendableWorkers, on_lost: Callable[[int, ProcessFailure], None], **kw: Any
    ) -> None:
        super().__init__(*args, **kw)
        self._expendable, self._on_lost = expendable, on_lost

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
            return self._failed(worker_group, alive) if any(ended.values()) else super()._monitor_workers(worker_group)
        for local, code in ended.items():
            if code == 0 or ranks[local] in self._expendable.lost:
                continue
            if not self._expendable.bears(ranks[local]):
                return self._failed(worker_group, alive)
            pid = context.subprocess_handlers[local].proc.pid
            _kill(pid)  # what it has started and left behind
            self._on_lost(ranks[local], ProcessFailure(local, pid, code, context.error_files[local]))
        if len(ranks) > 1 or worker_group.group_world_size != 1:  # nobody waits for one that is alone
            for rank in self._expendable.hanging(alive):
                _kill(alive[rank])  # found dead at the next look, as if somebody had done it by hand
        if alive:
            return RunResult(state=WorkerState.HEALTHY)
        if all(rank in self._expendable.lost for rank in ranks.values()) and worker_group.group_world_size == 1:
            return super()._monitor_workers(worker_group)  # nobody is left: that is a failure, as of any run
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks.values()))

    def _failed(self, worker_group: WorkerGroup, alive: Mapping[int, int]) -> RunResult:
        """torch's verdict on a failure: all others are asked to end, which one that is stopped does not hear."""
        for rank in self._expendable.missed(alive):
            _kill(alive[rank])
        result: RunResult = super()._monitor_workers(worker_group)
        return result


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
        os.killpg(group, signal.SIGKILL)


def _meeting(config: LaunchConfig) -> RendezvousHandler:
    """torch's own, between machines."""
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
    """What ``torch.distributed.launcher.api.launch_agent`` does, with an :class:`Agent`.

    Args:
        here: host and port where the workers meet if no other machine takes part, see :class:`Here`.

    Returns:
        Rank → how it ended, of those that the launcher could not do without, or has ended because of them.

    Raises:
        SignalException: somebody wants the launcher to end.
        RendezvousError, DistNetworkError, DistStoreError: the machines do not meet.
    """
    handler = _meeting(config) if here is None else Here(*here, config.run_id)
    addr, port = None, None
    if config.rdzv_backend == "static" and here is None:
        addr, port = parse_rendezvous_endpoint(config.rdzv_endpoint.strip(), default_port=-1)
    os.environ[_SIGNALS_VARIABLE] = config.signals_to_handle
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
    within = getattr(config, "shutdown_timeout", None)  # younger than torch 2.9
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
        stopped = True  # the machines may still meet under this name
        raise
    finally:
        if not stopped:
            handler.shutdown()
