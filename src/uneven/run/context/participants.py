"""The workers that take part in a run: fixed ones here, those that come and go in ``run/membership/elastic_run.py``."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Union

from uneven.errors import ConfigError
from uneven.policy.core.membership import Members
from uneven.policy.samples.order import Portion

if TYPE_CHECKING:
    from uneven.run.membership.elastic_run import ElasticRun


class Transferable(Protocol):
    """An object whose state a newcomer takes over from another worker, as plain data and tensors."""

    def for_newcomers(self) -> Any: ...

    def take_over(self, state: Any) -> None:
        """Load the result of :meth:`for_newcomers` of another worker."""


class FixedMembers:
    """The workers of a run in which none leaves or joins; see :class:`uneven.run.membership.elastic_run.ElasticRun`.
    Raises ConfigError if one is asked to leave."""

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


Participants = Union[FixedMembers, "ElasticRun"]
"""The workers of a run. Members change only in an exchange, or between two steps of this worker."""
