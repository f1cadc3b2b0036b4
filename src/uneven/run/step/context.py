"""What everything in a session is made from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.core.run_config import RunConfig
from uneven.policy.sync import SyncPolicy
from uneven.run.membership.elastic_run import Elastic
from uneven.run.start.connect import Connection
from uneven.run.step.scribe import Scribe, tell_nonfinite
from uneven.runtime.at_exit import program_ends
from uneven.runtime.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One worker's place in a run, and its way to the others and to the journal.

    Attributes:
        members: ranks of all workers.
        sites: where each rank is.
        elastic: where workers may leave and join, what sees to it; else None.
    """

    world: World
    config: RunConfig
    policy: SyncPolicy
    sites: dict[int, str]
    connection: Connection
    scribe: Scribe
    elastic: Elastic | None = None

    @property
    def rank(self) -> int:
        """This worker; for life, where workers may leave and join."""
        return self.world.rank

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of all workers."""
        return tuple(range(self.world.size)) if self.elastic is None else self.elastic.members

    @property
    def place(self) -> int:
        """This worker's position among them."""
        return self.world.rank if self.elastic is None else self.elastic.membership.place

    def nonfinite(self, what: str) -> Callable[[], None]:
        """What to call where ``what`` holds a NaN or an infinity; it may raise.

        Nothing in it leads to the session: the connection, which may hold it, outlives that.
        """
        return partial(tell_nonfinite, self.scribe, self.config, self.rank, what)

    def log(self, scalars: Mapping[str, float], weight: float) -> None:
        for name, value in scalars.items():
            number = one_number(f"session.log({name}=…)", value)
            self.scribe.scalar(name, number, weight)
            if not math.isfinite(number):
                self.nonfinite(name)()

    def note_traffic(self) -> None:
        """Write down what has passed on the lines to other workers since this was last done."""
        for record in self.connection.traffic.records(self.rank, self.scribe.iteration, time.time()):
            self.scribe.write(record)

    def close(self) -> None:
        """The end of the session, or of the program: the last lines of the journal, and the others are left."""
        self.note_traffic()
        failed = self.scribe.failure() is not None
        self.scribe.close()
        self.connection.close(failed)


def one_number(call: str, value: Any) -> float:
    """What a user gave as a number: one of Python's or NumPy's, or a tensor of one element.

    Raises:
        ConfigError: it is none, naming the call.
    """
    if not isinstance(value, str):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last for a tensor of several elements
            raise ConfigError(f"{call} is given a {type(value).__name__}, which is no number ({error})") from error
    raise ConfigError(f"{call} is given {value!r}, which is no number")


def leave(context: Context) -> None:
    """A session is not used any more and was not closed, or the program ends."""
    context.connection.dropped = not program_ends()
    context.close()
