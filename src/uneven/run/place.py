"""The part of a session about its worker's place among the others."""

from __future__ import annotations

import torch

from uneven.run.membership.state_transfer import MembershipHooks
from uneven.run.start.model_device import device_of
from uneven.run.step.loop import StepLoop
from uneven.runtime.world import World


class PlaceInRun:
    """The properties of this worker and of the members."""

    world: World
    _loop: StepLoop
    _members: MembershipHooks

    @property
    def rank(self) -> int:
        """This worker's place, 0 … ``world_size`` − 1; in an elastic run it changes with the members, and 0 always
        exists."""
        return self._loop.context.place

    @property
    def worker(self) -> int:
        """This worker's number, which never changes: in the journal and in elastic runs."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """The current number of workers."""
        return len(self._loop.context.members)

    def leave(self) -> None:
        """Leave an elastic run, for instance because the machine will be reclaimed.

        The worker finishes the step under way, and the next ``next(loader)`` ends its program. SIGTERM does the same.

        Raises:
            ConfigError: the run is not elastic.
        """
        self._members.leave()

    @property
    def device(self) -> torch.device:
        """The device of this worker: its CUDA device, or the CPU."""
        return device_of(self.world)
