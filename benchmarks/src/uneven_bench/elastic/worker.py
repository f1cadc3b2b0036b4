"""What every loop of ``uneven bench elastic`` needs: its orders, its log, and how a fault is let happen. A worker's."""

from __future__ import annotations

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

CONTROL = "control.json"
"""What the bench wants of all workers; see :class:`Control`."""

_LOOK_EVERY_S = 0.005
_USUAL = 20
"""Exchanges whose median is the usual one."""

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticTask:
    """What a worker is told.

    Attributes:
        loop: which way to train, see :mod:`uneven_bench.elastic.script`.
        folder: where the logs, the orders and the last parameters are.
        workload: what to train.
        told: what one loop alone needs.
    """

    loop: str
    folder: str
    workload: dict[str, Any]
    told: dict[str, Any]

    @classmethod
    def of(cls, text: str) -> ElasticTask:
        """From JSON."""
        return cls(**json.loads(text))


class Control:
    """What the bench wants, read from a file that it may replace at any time.

    All workers see ``until`` before they come to it, so that all wait before the same step. So runs take turns, and
    nobody has passed ``end``.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CONTROL
        self._version = 0
        self._told: dict[str, Any] = {}
        self._suffered: set[int] = set()
        self._look()

    def waits_for(self, step: int) -> bool:
        """Wait until this step may be taken; False if the run is to end before it."""
        self._look()
        while step >= self._told["until"]:
            if self._told["end"] is not None and step >= self._told["end"]:
                return False
            time.sleep(_LOOK_EVERY_S)
            self._look()
        return self._told["end"] is None or step < self._told["end"]

    def fault(self, step: int) -> dict[str, Any] | None:
        """What this process is to suffer in this step, or should have before; once."""
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
    """One worker: computes, writes down what it does, and suffers what it is told to.

    Args:
        life: see :class:`uneven_bench.elastic.logs.WorkerLog`.
    """

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
        self._log.write(logs.first_line(os.getpid(), os.getppid(), life, time.monotonic()) + "\n")

    @property
    def step(self) -> int:
        """How many steps the parameters have taken."""
        return int(self.model.steps)

    def goes_on(self) -> bool:
        """Wait for one's turn; False if the run is over, or this worker leaves."""
        if not self.control.waits_for(self.step):
            return False
        self._fault = self._fault or self.control.fault(self.step)
        return not self.leaving

    def loss(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, net: Any = None) -> torch.Tensor:
        """The loss of this worker's part, after the time that its device takes for it.

        Args:
            net: what is called in the place of the model.
        """
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
        """Around everything in which gradients are exchanged.

        Args:
            begun: whether the exchange begins at once; else :meth:`exchange_begins` is called.
        """
        self._began_s = None
        self._began.clear()
        striker = None
        if self._fault is not None and self._fault["moment"] == "exchange":
            usual_s = median(self._exchanges_s) if self._exchanges_s else 0.0
            wait_s = self._fault["fraction"] * usual_s
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
        """The first gradients are there."""
        if self._began_s is None:
            self._began_s = time.monotonic()
            self._began.set()

    def hooked(self) -> None:
        """Let :meth:`exchange_begins` be called by the gradient that a backward pass has first, that of the output."""
        last = list(self.model.layers.parameters())[-1]
        last.register_post_accumulate_grad_hook(self.exchange_begins)

    def stepped(self, epoch: int) -> None:
        """The optimizer has stepped: write down what was in it."""
        at_s = time.monotonic()
        self._log.write(logs.step_line(logs.LoggedStep(at_s, self.step, epoch, tuple(counted(self.model)))) + "\n")
        self.model.steps += 1
        self.optimizer.zero_grad()

    def ended(self, digest: str | None = None) -> None:
        """The run is over: write down what came of it; after a SIGTERM, nothing.

        Args:
            digest: of what all have in common, where replicas differ; None for that of the parameters.
        """
        if self.leaving:
            return
        found = hashlib.sha256()
        for tensor in weights(self.model):
            found.update(tensor.numpy().tobytes())
        if self.workload.double:
            torch.save([tensor.clone() for tensor in weights(self.model)], self.folder / f"weights-{os.getpid()}.pt")
        self._log.write(logs.last_line(found.hexdigest() if digest is None else digest) + "\n")

    def leaves_on_sigterm(self) -> None:
        """Finish the step and leave, for systems that have no word for it."""

        def leave(*_: Any) -> None:
            self.leaving = True

        signal.signal(signal.SIGTERM, leave)

    def _strike_inside(self, wait_s: float) -> None:
        self._began.wait()
        time.sleep(wait_s)
        if self._began_s is not None:  # else the exchange was a short one: the next one, then
            self._strike()

    def _strike(self) -> None:
        assert self._fault is not None
        number = _SIGNALS[self._fault["kind"]]
        inside, self._fault = self._began_s is not None, None
        self._log.write(logs.struck_line(time.monotonic(), inside) + "\n")
        os.kill(os.getpid(), number)
