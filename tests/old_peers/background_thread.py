"""The background thread that takes part in exchanges, one after the other (ShadowSync, §1.3, §1.6).

The training never waits for it: it hands over an order if the thread is idle, and otherwise skips that exchange. Only
the threads of different workers wait for each other. If one worker ends early, its thread still takes part, and
signals in every exchange that it rests. The exchange in which all workers rest is the last one on each of them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from uneven.errors import TrainingError
from uneven.run.replicas.peers.overhead import PATIENCE_S, OverheadBudget

Order = TypeVar("Order")


class ShadowThread(Generic[Order]):
    """A thread for exchanges, started when it is first needed.

    Args:
        meet: carries an order out, in the thread; the flag means that this worker rests. Returns whether all do.
        gather: called before it, in the thread: waits until the others have started too, at no cost to the training.
    """

    def __init__(
        self,
        meet: Callable[[Order, bool], bool],
        gather: Callable[[Order], object] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._meet = meet
        self._gather = gather
        self._disturbing = False  # true from the time all have started until the exchange ends
        self._changed = threading.Condition()
        self._order: Order | None = None  # under way, or about to be
        self._rest: Order | None = None  # the order to take part with until the others end
        self._error: TrainingError | None = None
        self._leaving = self._ended = False
        self._thread: threading.Thread | None = None
        self._budget = OverheadBudget(patience_s)
        self._through_s = -math.inf  # end of the last exchange that overlapped with training
        self._stepped_s: float | None = None

    @property
    def idle(self) -> bool:
        """True if nothing is under way; raises :class:`TrainingError` if an exchange has failed."""
        return self.free(1.0)

    @property
    def exchanging(self) -> bool:
        """True while an exchange is under way that all members have started."""
        return self._disturbing

    @property
    def failed(self) -> bool:
        with self._changed:
            return self._ended and not self._leaving

    def stepped(self) -> None:
        """Note the end of a step; its duration shows the cost of exchanges."""
        now_s = time.perf_counter()
        if self._stepped_s is not None:
            quiet_s = 0.0 if self._disturbing else now_s - self._through_s
            self._budget.stepped(now_s - self._stepped_s, quiet_s)
        self._stepped_s = now_s

    def paused(self) -> None:
        """Stop timing until the next step: the epoch has ended, or the model is evaluated."""
        self._stepped_s = None

    def resumed(self) -> None:
        if self._stepped_s is None:
            self._stepped_s = time.perf_counter()

    def free(self, load: float) -> bool:
        """Return whether an exchange can start now: none is under way, and its ``load``, a part of the time, is
        affordable.
        Raises :class:`TrainingError` if an exchange has failed."""
        if self._ended:
            with self._changed:
                self._check()
        # Called after every step, so without the lock, which is safe because only this thread sets an order.
        return self._order is None and (load >= 1.0 or self._budget.allows(load))

    def offer(self, order: Order, load: float = 1.0) -> None:
        """Start an exchange if nothing is under way; never waits."""
        with self._changed:
            assert self._order is None, "one exchange at a time"
            self._order = order
            self._budget.begin(load)
            self._begin()

    def rest(self, order: Order) -> None:
        """Take part in exchanges until all workers rest; afterwards nothing is under way. Raises
        :class:`TrainingError`."""
        with self._changed:
            self._check()
            self._rest = order
            self._begin()
            self._changed.wait_for(lambda: self._rest is None or self._ended)
            self._check()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
            idle = self._order is None and self._rest is None
        # A daemon thread that waits for a worker that will never come is left behind.
        if self._thread is not None and (idle or self._ended):
            self._thread.join()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="uneven-shadow", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _check(self) -> None:
        if self._ended and not self._leaving:
            raise self._error or TrainingError("the thread that exchanges beside the training has ended: see its error")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except TrainingError as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _turn(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._order is not None or self._rest is not None or self._leaving)
            if self._leaving:
                return False
            order, resting = self._order, self._order is None
            if order is None:
                order = self._rest
        assert order is not None
        if self._gather is not None:
            self._gather(order)
        self._disturbing = not resting  # this worker no longer trains when it rests
        all_rest = self._meet(order, resting)
        with self._changed:
            self._order = None
            self._disturbing = False
            if not resting:
                self._through_s = time.perf_counter()
            if all_rest:
                self._rest = None
                self._changed.notify_all()
        return True
