"""Features that stay as they are, and what is made of them once: A · X of the first layer costs nothing afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from uneven.errors import ConfigError, TrainingError


@dataclass
class _Known:
    version: int
    dtype: torch.dtype
    made: dict[str, Tensor] = field(default_factory=dict)


class Constants:
    """The constants of one graph, as long as somebody has them. Dropout on one makes another tensor, which is none."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def add(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Take up ``x``; returned as it is.

        Raises:
            ConfigError: it is trained.
        """
        if x.requires_grad:
            raise ConfigError("graph.constant: x is trained (requires_grad), so what is made of it changes each step")
        self._known.setdefault(x, _Known(x._version, dtype or x.dtype))
        return x

    def __contains__(self, x: Tensor) -> bool:
        return x in self._known

    def made(self, what: str, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``make`` makes of ``x``; of a constant, it is made once.

        Raises:
            TrainingError: the constant was changed in place.
        """
        known = self._known.get(x)
        if known is None:
            return make(x)
        if x._version != known.version:
            raise TrainingError(
                "features given to graph.constant were changed in place, and what was made of them is kept: change a "
                "copy, or leave graph.constant out"
            )
        if what not in known.made:
            with torch.no_grad():
                known.made[what] = make(x).to(known.dtype)
        return known.made[what]
