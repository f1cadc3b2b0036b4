"""Features that stay as they are, and what is made of them once: A · X of the first layer costs nothing afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from uneven.errors import ConfigError, TrainingError


@dataclass
class _Known:
    tensor: Tensor
    version: int
    dtype: torch.dtype | None
    made: dict[str, Tensor] = field(default_factory=dict)


class Constants:
    """The constants of one graph. Dropout on one makes another tensor, which is none."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def add(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Take up ``x``; returned as it is.

        Raises:
            ConfigError: it is trained.
        """
        if x.requires_grad:
            raise ConfigError("graph.constant: x is trained (requires_grad), so what is made of it changes each step")
        if id(x) not in self._known:
            self._known[id(x)] = _Known(x, x._version, dtype)
        return x

    def made(self, what: str, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor | None:
        """What ``make`` makes of a constant, made once; None for other tensors.

        Raises:
            TrainingError: the constant was changed in place.
        """
        known = self._known.get(id(x))
        if known is None or known.tensor is not x:
            return None
        if x._version != known.version:
            raise TrainingError(
                "features given to graph.constant were changed in place, and what was made of them is kept: change a "
                "copy, or leave graph.constant out"
            )
        if what not in known.made:
            with torch.no_grad():
                found = make(x)
            known.made[what] = found if known.dtype is None else found.to(known.dtype)
        return known.made[what]

    def forget(self) -> None:
        """The part is another one."""
        self._known.clear()
