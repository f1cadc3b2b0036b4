"""Nodes of an emulation by an ordinary user: workers on this machine that are stopped and continued."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uneven.cluster.emulate.ports import quiet_ports
from uneven.cluster.emulate.pure.replay import Direction, Quantity, Setting
from uneven.errors import ConfigError
from uneven.runtime.jobs import Command, Events
from uneven.runtime.system import LOOPBACK_INTERFACE
from uneven.runtime.throttle.throttle import Throttle

LEAST_CORES = 0.01  # the throttle does not support a share of 0


def stop(worker: Command, stopped: bool) -> None:
    """Stop or continue a worker and its descendants; no effect if it has ended."""
    worker.signal(signal.SIGSTOP if stopped else signal.SIGCONT, group=True)


class Throttled:
    """The machines of an ordinary user, with the methods of :class:`uneven.cluster.emulate.isolated.Isolated`; supports
    shares of processor time only. Raises LaunchError if the throttle cannot be started."""

    def __init__(self) -> None:
        self.how = "workers that are stopped and continued, as by an ordinary user"
        self.network = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(quiet_ports(1)[0]),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE),
        }
        self._throttle = Throttle(period_s=0.01)
        self._workers: dict[int, Command] = {}
        self._cores: dict[int, float] = {}
        self._stopped: dict[int, bool] = {}

    def address(self, index: int) -> None:
        """Return None: all are on the loopback."""

    def meet(self, keep: Callable[[str, int], Any]) -> Any:
        return keep(self.network["MASTER_ADDR"], int(self.network["MASTER_PORT"]))

    def start(
        self,
        index: int,
        program: Sequence[str],
        env: Mapping[str, str],
        events: Events,
        ended: Callable[[Command], None] = lambda process: None,
    ) -> Command:
        self._workers[index] = Command(f"worker {index}", program, env=env, events=events, ended=ended)
        return self._workers[index]

    def apply(self, index: int, setting: Setting) -> None:
        """Apply a share or a stop. Other settings have been rejected before, unless they change nothing."""
        worker = self._workers[index]
        if worker.ending is not None:
            return
        if setting.quantity is Quantity.STOPPED:
            self._stopped[index] = setting.value > 0
        elif setting.quantity is Quantity.CORES:
            self._cores[index] = setting.value
        else:
            return
        try:
            if self._stopped.get(index):  # the throttle would continue it again and again
                self._throttle.release(worker.pid)
                stop(worker, True)
            else:
                stop(worker, False)
                self._throttle.limit(worker.pid, max(self._cores[index], LEAST_CORES))
        except ConfigError:
            return  # it has ended in the meantime

    def apply_between(self, direction: Direction, setting: Setting) -> None:
        """Raise an error; links between sites have been rejected before the start."""
        raise AssertionError(f"{setting} of the line {direction} was sent to a machine without links")

    def lift(self, index: int) -> None:
        self._throttle.release(self._workers[index].pid)
        stop(self._workers[index], False)

    def kill(self, index: int) -> None:
        self._workers[index].signal(signal.SIGKILL, group=True)

    def why_killed(self, index: int) -> str:
        return ""

    def broken(self) -> str:
        return ""

    def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._throttle.close()
