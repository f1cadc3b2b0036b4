"""One thread beside the training that takes part in exchanges, one after the other (ShadowSync, §1.3, §1.6).

The training never waits for it: it hands over an order if the thread is idle, and else lets that exchange be. Only
the threads of different workers wait for each other. Where one worker is through before the others, its thread goes
on taking part, so that nobody waits for it in vain; it says so in every exchange, and the one in which all say so is
the last, on every worker alike.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from uneven.errors import TrainingError
from uneven.run.parameters.overhead import PATIENCE_S, OverheadBudget

Order = TypeVar("Order")


class ShadowThread(Generic[Order]):
    """Begins when it is first needed.

    Args:
        meet: carries an order out, in the thread; the flag says that this worker rests. Its answer is whether
            everybody does.
        gather: before that, in the thread: waits until the others have begun as well, which costs the training nothing.
        patience_s: of training without an exchange, after which this worker begins one whatever it costs.
    """

    def __init__(
        self, meet: Callable[[Order, bool], bool], gather: Callable[[Order], object] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self._meet, self._gather = meet, gather
        self._disturbing = False  # from when all have begun until it is over
        self._changed = threading.Condition()
        self._order: Order | None = None  # under way, or about to be
        self._rest: Order | None = None  # what to take part with while the others are not through
        self._error: TrainingError | None = None
        self._leaving = self._ended = False
        self._thread: threading.Thread | None = None
        self._budget = OverheadBudget(patience_s)
        self._through_s = -math.inf  # when the last one was through that the training went on beside
        self._stepped_s: float | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way; never waits for anybody.

        Raises:
            TrainingError: an exchange has failed.
        """
        return self.free(1.0)

    @property
    def exchanging(self) -> bool:
        """Whether an exchange is under way that all others have begun as well, where they have to."""
        return self._disturbing

    @property
    def failed(self) -> bool:
        """Whether an exchange has failed."""
        with self._changed:
            return self._ended and not self._leaving

    def stepped(self) -> None:
        """A step has just ended; how long it took says what exchanges cost."""
        now_s = time.perf_counter()
        if self._stepped_s is not None:
            quiet_s = 0.0 if self._disturbing else now_s - self._through_s
            self._budget.stepped(now_s - self._stepped_s, quiet_s)
        self._stepped_s = now_s

    def paused(self) -> None:
        """What comes until the next step is none: the epoch is over, or somebody evaluates."""
        self._stepped_s = None

    def resumed(self) -> None:
        """A step begins; after a pause, steps are timed from now on."""
        if self._stepped_s is None:
            self._stepped_s = time.perf_counter()

    def free(self, load: float) -> bool:
        """Whether an exchange can begin: nothing is under way, and the training can afford it; never waits for anybody.

        Args:
            load: the part of its time that exchanges may cost the training; 1 is back to back.

        Raises:
            TrainingError: an exchange has failed.
        """
        if self._ended:
            with self._changed:
                self._check()
        # Asked after every step, so without the lock: only this side sets an order.
        return self._order is None and (load >= 1.0 or self._budget.allows(load))

    def offer(self, order: Order, load: float = 1.0) -> None:
        """Begin an exchange, where nothing is under way; never waits for anybody."""
        with self._changed:
            assert self._order is None, "one exchange at a time"
            self._order = order
            self._budget.begin(load)
            self._begin()

    def rest(self, order: Order) -> None:
        """Take part in what the others still exchange, until all of them rest; afterwards nothing is under way.

        Raises:
            TrainingError: an exchange has failed.
        """
        with self._changed:
            self._check()
            self._rest = order
            self._begin()
            self._changed.wait_for(lambda: self._rest is None or self._ended)
            self._check()

    def close(self) -> None:
        """End the thread. One that waits for somebody who will not come is left behind; it keeps nothing running."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
            idle = self._order is None and self._rest is None
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
        self._disturbing = not resting  # nothing is trained then
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
