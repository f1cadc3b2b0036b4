"""The parts of every loop of ``uneven bench elastic``: its orders, its log, and its faults. Runs in the worker."""

import hashlib
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from uneven_bench.elastic import logs
from uneven_bench.elastic.workload import CountedWorkload, Counting, counted, weights

CONTROL = "control.json"  # the file of the bench's orders; see :class:`Control`
_LOOK_EVERY_S = 0.005
_USUAL = 20  # exchanges whose median is the usual one
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTask:
    """A worker's task."""

    loop: str  # see :mod:`uneven_bench.elastic.script`
    folder: str  # for the logs, the orders and the final parameters
    workload: dict[str, Any]  # the model and its data
    told: dict[str, Any]  # settings of one loop


class Control:
    """The bench's orders, in a file that it may replace at any time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CONTROL
        self._version = 0
        self._told: dict[str, Any] = {}
        self._suffered: set[int] = set()
        self._look()

    def waits_for(self, step: int) -> bool:
        """Wait until this step may be taken; False if the run ends before it."""
        self._look()
        # Every worker sees ``until`` before it comes to it, so all wait before the same step and none has passed
        # ``end``.
        while step >= self._told["until"]:
            if self._told["end"] is not None and step >= self._told["end"]:
                return False
            time.sleep(_LOOK_EVERY_S)
            self._look()
        return self._told["end"] is None or step < self._told["end"]

    def fault(self, step: int) -> dict[str, Any] | None:
        """Return this process's fault of this step or of an earlier one, once."""
        for number, one in enumerate(self._told["faults"]):
            if one["pid"] == os.getpid() and one["step"] <= step and number not in self._suffered:
                self._suffered.add(number)
                return dict(one)
        return None

    def _look(self) -> None:
        version = self._path.stat().st_mtime_ns
        if version != self._version:
            self._version, self._told = version, json.loads(self._path.read_text())


class LoggedWorker:
    """A worker that computes, logs its steps, and strikes itself on order. ``life``: see
    :class:`uneven_bench.elastic.logs.WorkerLog`."""

    def __init__(self, task: ElasticTask, life: float = 0.0) -> None:
        torch.set_num_threads(1)
        self.task = task
        self.workload = CountedWorkload(**task.workload)
        self.folder = Path(task.folder)
        self.control = Control(self.folder)
        self.model: Counting = self.workload.model()
        self.optimizer = self.workload.optimizer(self.model)
        self.leaving = False
        self._fault: dict[str, Any] | None = None
        self._exchanges_s: deque[float] = deque(maxlen=_USUAL)
        self._began_s: float | None = None
        self._began = threading.Event()
        path = self.folder / f"worker-{os.getpid()}-{time.monotonic_ns()}.jsonl"
        self._log = path.open("w", buffering=1, encoding="utf-8")
        self._log.write(logs.first_line(os.getpid(), os.getppid(), life, time.monotonic()))

    @property
    def step(self) -> int:
        """The steps that the parameters have taken."""
        return int(self.model.steps)

    def goes_on(self) -> bool:
        """Wait for the turn of this worker; False if the run is over, or this worker leaves."""
        if not self.control.waits_for(self.step):
            return False
        self._fault = self._fault or self.control.fault(self.step)
        return not self.leaving

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, net: Any = None) -> torch.Tensor:
        """Return the loss of this worker's part (scalar), after the time that its device takes for it. ``net``: a
        stand-in for the model."""
        seconds = len(y) * self.workload.per_sample_s
        if self._fault is not None and self._fault["moment"] == "between":
            time.sleep(seconds * self._fault["fraction"])
            self._strike()
        else:
            time.sleep(seconds)
        loss: torch.Tensor = (net or self.model)(x, y, index)
        return loss

    @contextmanager
    def exchange(self, *, begun: bool = True) -> Iterator[None]:
        """Run the body as an exchange of gradients; unless ``begun``, :meth:`exchange_begins` is called later."""
        self._began_s = None
        self._began.clear()
        striker = None
        if self._fault is not None and self._fault["moment"] == "exchange":
            usual_s = median(self._exchanges_s) if self._exchanges_s else 0.0
            wait_s = self._fault["fraction"] * usual_s
            # A thread, because the exchange blocks this one, and a kill must come in the middle of it.
            striker = threading.Thread(target=self._strike_inside, args=(wait_s,), daemon=True)
            striker.start()
        if begun:
            self.exchange_begins()
        yield
        ended_s, began_s = time.monotonic(), self._began_s
        self._began_s = None
        if began_s is not None:
            self._exchanges_s.append(ended_s - began_s)
        if striker is not None:
            striker.join()

    def exchange_begins(self, *_: Any) -> None:
        """Note that the first gradients exist."""
        if self._began_s is None:
            self._began_s = time.monotonic()
            self._began.set()

    def hooked(self) -> None:
        """Call :meth:`exchange_begins` at the first gradient of a backward pass, that of the output."""
        # A backward pass begins at the output, so the last parameter has its gradient first.
        last = list(self.model.layers.parameters())[-1]
        last.register_post_accumulate_grad_hook(self.exchange_begins)

    def stepped(self, epoch: int) -> None:
        """Log the samples of the optimizer's step."""
        at_s = time.monotonic()
        self._log.write(logs.step_line(logs.LoggedStep(at_s, self.step, epoch, tuple(counted(self.model)))))
        self.model.steps += 1
        self.optimizer.zero_grad()

    def ended(self, digest: str | None = None) -> None:
        """Log the final digest; after a SIGTERM, nothing. ``digest``: of the common result, if replicas differ; None
        for that of the parameters."""
        if self.leaving:
            return
        found = hashlib.sha256()
        for tensor in weights(self.model):
            found.update(tensor.numpy().tobytes())
        if self.workload.double:
            torch.save([tensor.clone() for tensor in weights(self.model)], self.folder / f"weights-{os.getpid()}.pt")
        self._log.write(logs.last_line(found.hexdigest() if digest is None else digest))

    def leaves_on_sigterm(self) -> None:
        """Leave after the current step on SIGTERM, for systems without a preemption notice."""

        def leave(*_: Any) -> None:
            self.leaving = True

        signal.signal(signal.SIGTERM, leave)

    def _strike_inside(self, wait_s: float) -> None:
        self._began.wait()
        time.sleep(wait_s)
        if self._began_s is not None:  # a short exchange was over before; the fault waits for the next one
            self._strike()

    def _strike(self) -> None:
        assert self._fault is not None
        number = _SIGNALS[self._fault["kind"]]
        inside, self._fault = self._began_s is not None, None
        # The line must be in the file before the signal: a killed process writes no more.
        self._log.write(logs.struck_line(time.monotonic(), inside))
        os.kill(os.getpid(), number)
