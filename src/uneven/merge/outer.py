"""A mean movement as the gradient of an optimizer of the user's. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.errors import ConfigError
from uneven.merge.base import Kept, Merge

if TYPE_CHECKING:
    from torch import Tensor

OuterOptimizer = Callable[[list[Any]], Any]
"""Makes an optimizer for some parameters, as ``functools.partial(torch.optim.SGD, lr=0.7)`` does."""

_STATE, _BEGUN = "outer-", "begun"


@dataclass(frozen=True, slots=True)
class Outer(Merge):
    """The next block starts where an outer optimizer steps to from x̃ with the gradient x̃ − mean of the replicas.

    SGD with rate 1 is a plain mean; with Nesterov's momentum it is DiLoCo's outer step. The optimizer is made anew for
    each step with the state that it had after the one before, so that a checkpoint holds it: x̃ (``copy``), and what the
    optimizer keeps, vectors of the model's length and numbers.

    Args:
        make: the optimizer.

    Raises:
        ConfigError: when training begins: the optimizer keeps something that is neither a vector nor a number.
    """

    make: OuterOptimizer

    def begin(self, start: Tensor) -> Kept:
        """x̃, and the names of what will be kept, at zero: those of a step that is taken for them alone."""
        _, state = self._step(start.clone(), start.new_zeros(start.shape), {})
        zero = {name: 0.0 if isinstance(one, float) else one.zero_() for name, one in state.items()}
        return {"copy": start, _BEGUN: 0.0, **zero}

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """The next block; ``given``, shape (size,), is the mean of the replicas after this one."""
        copy: Tensor = kept["copy"]
        state = {name: one for name, one in kept.items() if name.startswith(_STATE)} if kept[_BEGUN] else {}
        after, found = self._step(copy.clone(), copy - given, state)
        return {"copy": after, _BEGUN: 1.0, **found}, after

    def _step(self, point: Tensor, gradient: Tensor, state: Kept) -> tuple[Tensor, Kept]:
        """Where a step leads to, and the state after it."""
        point.requires_grad_().grad = gradient
        optimizer = self.make([point])
        if state:
            optimizer.state[point] = {
                name.removeprefix(_STATE): point.new_tensor(one) if isinstance(one, float) else one
                for name, one in state.items()
            }
        optimizer.step()
        kept = {_STATE + name: _plain(name, one) for name, one in optimizer.state[point].items() if one is not None}
        return point.detach(), kept


def _plain(name: str, value: Any) -> Tensor | float:
    if isinstance(value, int | float):
        return float(value)
    if not hasattr(value, "detach"):
        raise ConfigError(
            f"the outer optimizer keeps {name!r}, which is no vector and no number: use SGD, Adam or another one whose "
            f"state a checkpoint can hold"
        )
    vector: Tensor = value.detach()
    return vector if vector.dim() else float(vector)
