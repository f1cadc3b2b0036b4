"""An outer step with a user's optimizer, whose gradient is the mean movement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.errors import ConfigError
from uneven.policy.merge.merge import Kept, Merge

if TYPE_CHECKING:
    from torch import Tensor

OuterOptimizer = Callable[[list[Any]], Any]
"""A factory of optimizers for a list of parameters, such as ``functools.partial(torch.optim.SGD, lr=0.7)``."""

_STATE, _BEGUN = "outer-", "begun"


@dataclass(frozen=True, slots=True)
class Outer(Merge):
    """Start the next block where an outer optimizer steps to from x̃ with the gradient x̃ − mean of the replicas.

    SGD with rate 1 is a plain mean; with Nesterov momentum it is DiLoCo's outer step. The state is x̃ (``copy``) and
    the optimizer's: vectors of the model's length, and numbers.

    Raises:
        ConfigError: at the start of training, if the optimizer's state has anything else.
    """

    make: OuterOptimizer

    def begin(self, start: "Tensor") -> Kept:
        """Return x̃, flat like ``start``, and a zeroed optimizer state."""
        # this step only reveals the names of the optimizer's state
        _, state = self._step(start.clone(), start.new_zeros(start.shape), {})
        zero = {name: 0.0 if isinstance(one, float) else one.zero_() for name, one in state.items()}
        return {"copy": start, _BEGUN: 0.0, **zero}

    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        """Return state and start of the next block; ``given``, shape (n,), is the mean of the replicas."""
        copy: Tensor = kept["copy"]
        state = {name: one for name, one in kept.items() if name.startswith(_STATE)} if kept[_BEGUN] else {}
        after, found = self._step(copy.clone(), copy - given, state)
        return {"copy": after, _BEGUN: 1.0, **found}, after

    def _step(self, point: "Tensor", gradient: "Tensor", state: Kept) -> "tuple[Tensor, Kept]":
        """Return the point after a step, and the optimizer's state."""
        point.requires_grad_().grad = gradient
        optimizer = self.make([point])  # a new one each time: all state is in `kept`, so that a checkpoint has it
        if state:
            optimizer.state[point] = {
                name.removeprefix(_STATE): point.new_tensor(one) if isinstance(one, float) else one
                for name, one in state.items()
            }
        optimizer.step()
        kept = {_STATE + name: _plain(name, one) for name, one in optimizer.state[point].items() if one is not None}
        return point.detach(), kept


def _plain(name: str, value: Any) -> "Tensor | float":
    if isinstance(value, int | float):
        return float(value)
    if not hasattr(value, "detach"):
        raise ConfigError(
            f"the outer optimizer keeps {name!r}, which is not a vector or a number: use SGD, Adam or another "
            "one whose state fits a checkpoint"
        )
    vector: Tensor = value.detach()
    return vector if vector.dim() else float(vector)
