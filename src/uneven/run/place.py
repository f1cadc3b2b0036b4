"""Where the worker of a session stands among the others."""

from __future__ import annotations

import torch

from uneven.run.membership.state_transfer import MembershipHooks
from uneven.run.start.model_device import device_of
from uneven.run.step.loop import StepLoop
from uneven.runtime.world import World


class PlaceInRun:
    """What a session says of its worker, and of those that take part."""

    world: World
    _loop: StepLoop
    _members: MembershipHooks

    @property
    def rank(self) -> int:
        """This worker's place, 0 … ``world_size`` − 1; it changes where workers come and go, and 0 is always there."""
        return self._loop.context.place

    @property
    def worker(self) -> int:
        """This worker's number for life: in the journal, and where workers leave and join."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """Number of workers, now."""
        return len(self._loop.context.members)

    def leave(self) -> None:
        """This worker is to leave an elastic run, as its machine will be taken away: it finishes the step under way,
        and the next ``next(loader)`` ends its program. SIGTERM does the same.

        Raises:
            ConfigError: the run is not elastic.
        """
        self._members.leave()

    @property
    def device(self) -> torch.device:
        """The device that belongs to this worker: its CUDA device, or the CPU."""
        return device_of(self.world)
