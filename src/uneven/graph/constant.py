"""Constant features: the first layer's A · X is computed once and cached."""

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
    """The constant tensors of one graph, held weakly. Dropout on a constant returns a new tensor."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

    def add(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Register ``x``, of any shape, and return it; raise :class:`ConfigError` if it requires a gradient."""
        if x.requires_grad:
            raise ConfigError("graph.constant: x requires a gradient, so its aggregate changes: give constant features")
        self._known.setdefault(x, _Known(x._version, dtype or x.dtype))
        return x

    def __contains__(self, x: Tensor) -> bool:
        return x in self._known

    def made(self, what: str, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``make(x)``, cached if ``x``, of any shape, is constant; raise TrainingError if it has changed."""
        known = self._known.get(x)
        if known is None:
            return make(x)
        if x._version != known.version:  # torch increments it on every in-place change
            raise TrainingError(
                "features given to graph.constant were changed in place, but their aggregate is cached: change a "
                "copy, or leave graph.constant out"
            )
        if what not in known.made:
            with torch.no_grad():
                known.made[what] = make(x).to(known.dtype)
        return known.made[what]
