"""The workers that take part in a run: fixed ones here, those that come and go in ``run/membership/elastic_run.py``."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from torch import nn

from uneven.errors import ConfigError
from uneven.policy.core.membership import Generation, Members
from uneven.policy.samples.order import Changing, Portion, SampleBook


class Transferable(Protocol):
    """An object whose state a newcomer takes over from another worker, as plain data and tensors."""

    def for_newcomers(self) -> Any: ...

    def take_over(self, state: Any) -> None:
        """Load the result of :meth:`for_newcomers` of another worker."""


class ChangingRun(Protocol):
    """The methods of the training loop that are called when members change."""

    @property
    def apart(self) -> bool:
        """True if replicas have taken steps that are not merged yet."""

    def members_changed(self, generation: Generation) -> None:
        """Continue with other members."""

    def transferred(self) -> Sequence[tuple[str, Transferable]]:
        """Return the objects whose state a newcomer takes over, with names, in the order of taking over."""

    def introduction(self) -> dict[str, Any]:
        """Return the facts that the others need before this worker joins, as plain data."""

    def settle(self) -> None:
        """Merge the steps that are not merged yet."""


class Participants(Protocol):
    """The workers of a run. Members change only in an exchange, or between two steps of this worker.

    Attributes:
        place: this worker's position among the members.
        generation: the number of earlier changes of members.
        most: the largest number of workers that the run may have at a time.
        changes: whether workers may leave and join.
        alone: whether this worker is the only one, and no other can join.
        joins_later: whether this worker was not there at the start.
        book: the record of who has which samples; None if members are fixed.
        changing: the same object if all workers take the same steps; otherwise None.
        counted: returns the samples of an iteration that count for all workers together.
    """

    changes: bool
    alone: bool

    @property
    def members(self) -> Members: ...
    @property
    def place(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def joins_later(self) -> bool: ...
    @property
    def book(self) -> SampleBook | None: ...
    @property
    def changing(self) -> Changing | None: ...
    @property
    def counted(self) -> Callable[[Portion], int]: ...

    def bind(self, run: ChangingRun) -> None:
        """Connect the training loop, once."""

    def heed(self, notice: Callable[[], float | None]) -> None:
        """Leave when ``notice`` returns the seconds that are left. Raises ConfigError if no worker can leave."""

    def leave(self) -> None:
        """Leave after the step under way. Raises ConfigError if no worker can leave."""

    def meet(self, model: nn.Module, frozen: str) -> None:
        """Give all workers of an elastic run the first one's parameters and buffers.
        Frozen parameters stay as they are if ``frozen`` is their digest on all workers."""

    def attach(self, model: nn.Module, others: Sequence[Any]) -> None:
        """Remember the model and the user's other objects whose state a newcomer needs."""

    def enter(self) -> None:
        """Wait until this worker is a member, and take over the state of the run."""

    def check_in(self, what: str) -> None:
        """Raise ConfigError if this worker is not a member yet; ``what`` names the call."""

    def begins(self, part: Portion) -> None:
        """Prepare for a step that is about to start."""

    def step_over(self) -> None:
        """Change members between two steps, if this was announced. Ends the program if this worker leaves."""

    def pass_over(self) -> None:
        """Learn, at the end of a pass over an epoch, which samples are requeued in that epoch."""


class FixedMembers:
    """The workers of a run in which none leaves or joins."""

    generation = 0
    changes = False
    joins_later = False
    book = changing = None
    counted: Callable[[Portion], int] = staticmethod(attrgetter("size"))  # called in each step: no function of Python

    def __init__(self, rank: int, size: int) -> None:
        self.members: Members = tuple(range(size))
        self.place = rank
        self.most = size
        self.alone = size == 1

    def heed(self, notice: Callable[[], float | None]) -> None:
        if not self.alone:
            raise ConfigError(
                "Session(preemption_notice=…) works in elastic runs only: start with `uneven run --elastic MIN:MAX`"
            )

    def leave(self) -> None:
        raise ConfigError("session.leave works in elastic runs only: start with `uneven run --elastic MIN:MAX`")

    def _nothing(self, *_: object, **__: object) -> None: ...

    bind = meet = attach = enter = check_in = begins = step_over = pass_over = _nothing
