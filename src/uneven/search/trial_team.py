"""Train one trial on several devices: a process on each, joined by :class:`uneven.Session`.

Every process reads the same batches of the search's data and takes its part of each, as the balancer splits it. The
gradient is that of the whole batch, so the trial learns what it would on one device.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.fleet.member.team import Seat, apart, as_it_is, together

BALANCE = "lb-bsp"


class GlobalBatches:
    """An epoch's batches as a data set of `samples` samples, read in order, batch by batch of `size` samples."""

    def __init__(self, samples: int, size: int) -> None:
        self._samples = samples
        self._size = size
        self.begin(iter(()))

    def begin(self, batches: Iterator[list[torch.Tensor]]) -> None:
        """Read from these batches, tensors of shape (samples, …), from now on."""
        self._batches, self._number = batches, -1
        self._fields: list[torch.Tensor] = []

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, position: int) -> list[torch.Tensor]:
        raise NotImplementedError  # whole batches only, in order

    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return samples of one batch, a tensor of shape (samples, …) per field; a view if they are consecutive."""
        while self._number < positions[0] // self._size:
            self._fields = next(self._batches)
            self._number += 1
        places = [position - self._number * self._size for position in positions]
        if places[-1] - places[0] == len(places) - 1:
            return [field[places[0] : places[-1] + 1] for field in self._fields]
        return [field[places] for field in self._fields]  # padding repeats samples


class TrialTeam:
    """One process of a trial; all make the same calls in the same order.

    `kept` includes one model and its optimizers. Raises `ConfigError` if it does not, or if the batch is too small to
    be divided, and `PeerError` if another process did not come, or ended.
    """

    def __init__(self, seat: Seat, kept: Sequence[Any], samples: int, batch: int) -> None:
        models = [part for part in kept if isinstance(part, nn.Module)]
        if len(models) != 1:
            raise ConfigError(
                f"trial.epochs(…) on several devices got {len(models)} models: give one model, and its optimizers"
            )
        self._session = together(seat, BALANCE)
        self._session.setup(models[0], *(part for part in kept if isinstance(part, torch.optim.Optimizer)))
        self._global = GlobalBatches(samples, batch)
        self._loader = self._session.loader(self._global, batch, shuffle=False, collate_fn=as_it_is)

    def parts(self, batches: Iterator[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
        """Yield this process's part of each batch, a tensor of shape (samples, …) per field."""
        self._global.begin(batches)
        yield from self._loader

    def close(self) -> None:
        apart(self._session)
