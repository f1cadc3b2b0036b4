"""The common context of all objects in a session."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer
from uneven.policy.core.run_config import RunConfig
from uneven.policy.sync import SyncPolicy
from uneven.run.context.participants import Participants
from uneven.run.context.scribe import Scribe, tell_nonfinite
from uneven.run.start.connect import Connection
from uneven.runtime.at_exit import program_ends
from uneven.runtime.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One worker's place in a run, and its connections to the others and to the journal."""

    world: World
    config: RunConfig
    policy: SyncPolicy
    balancer: Balancer
    sites: dict[int, str]  # site of each rank
    connection: Connection
    scribe: Scribe
    participants: Participants

    @property
    def rank(self) -> int:
        """This worker's number, which never changes."""
        return self.world.rank

    @property
    def members(self) -> tuple[int, ...]:
        return self.participants.members

    def nonfinite(self, what: str) -> Callable[[], None]:
        """Return the function to call when ``what`` has a NaN or infinity; it may raise."""
        # No reference to the session: the connection may keep this function and outlives the session.
        return partial(tell_nonfinite, self.scribe, self.config, self.rank, what)

    def log(self, scalars: Mapping[str, float | Tensor], weight: float) -> None:
        for name, value in scalars.items():
            number = one_number(f"session.log({name}=…)", value)
            self.scribe.scalar(name, number, weight)
            if not math.isfinite(number):
                self.nonfinite(name)()

    def note_traffic(self) -> None:
        for record in self.connection.traffic.records(self.rank, self.scribe.iteration, time.time()):
            self.scribe.write(record)

    def close(self) -> None:
        """End the session or the program: write the journal's last lines and leave the others."""
        self.note_traffic()
        failed = self.scribe.failure() is not None
        self.scribe.close()
        self.connection.close(failed)


def one_number(call: str, value: Any) -> float:
    """Return a user's number (of Python, of NumPy, or a tensor with one element); others raise ConfigError."""
    if not isinstance(value, str):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last for a tensor of several elements
            raise ConfigError(f"{call} got a {type(value).__name__}: give a number ({error})") from error
    raise ConfigError(f"{call} got {value!r}: give a number")


def leave(context: Context) -> None:
    """Close the context of a session that was dropped without ``close``, or at the end of the program."""
    context.connection.dropped = not program_ends()  # mid-program it must not wait for the others
    context.close()
