"""Copies of a model and its optimizers for additional threads, on the same memory (Hogwild; ShadowSync, §1.7)."""

import copy
import threading
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError

Aliases = dict[Tensor, Tensor]  # parameter of the model → parameter of the copy, on the same storage


def twin(model: nn.Module) -> tuple[nn.Module, Aliases]:
    """Return a copy of ``model`` whose parameters and buffers share its storage, and the parameters' aliases.

    All else (mode, hooks, other attributes) is copied; each copy has its own gradients.

    Raises:
        ConfigError: the model cannot be copied.
    """
    # Autograd counts the writes to a tensor and raises an error in a backward pass through one that was written since
    # the forward pass. Separate parameters have separate counts, so other threads' writes do not make it fail.
    aliases: Aliases = {one: nn.Parameter(one.data, requires_grad=one.requires_grad) for one in model.parameters()}
    memo: dict[int, Any] = {id(one): alias for one, alias in aliases.items()}
    memo.update((id(one), one.data) for one in model.buffers())
    try:
        return copy.deepcopy(model, memo), aliases
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"threads: each thread trains a copy of the model over the same memory, and {type(model).__name__} "
            f"cannot be copied ({error}): keep computed tensors out of its attributes, or use threads = 1"
        ) from error


class _Group(MutableMapping[str, Any]):
    """A parameter group with its own parameters that reads and writes all else (learning rate, …) in the original."""

    def __init__(self, original: dict[str, Any], parameters: list[Tensor]) -> None:
        self._original = original
        self._parameters = parameters

    def __getitem__(self, key: str) -> Any:
        return self._parameters if key == "params" else self._original[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "params":
            self._parameters = value
        else:
            self._original[key] = value

    def __delitem__(self, key: str) -> None:
        del self._original[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._original)

    def __len__(self) -> int:
        return len(self._original)


class SharedOptimizer:
    """An optimizer and its copies for additional threads, with one state: momentum, moments and step counts.

    All copies read and write a parameter's state without a lock, like the parameter.

    Raises:
        ConfigError: the optimizer cannot be copied.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "threads: LBFGS calls the model several times per step: use another optimizer, or threads = 1"
            )
        self._first = optimizer
        self._filling = threading.Lock()  # while an optimizer has state to create, only one of the copies steps
        self._holder: torch.optim.Optimizer | None = None
        self._begun = self._stateless = False
        self._users = dict(optimizer._optimizer_step_pre_hooks), dict(optimizer._optimizer_step_post_hooks)
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Register the hooks on the user's optimizer, before the threads start."""
        self._hooks = self._watch(self._first)

    def copy(self, aliases: Aliases) -> torch.optim.Optimizer:
        """Return a copy that steps on the parameters of a copy of the model.

        Raises:
            ConfigError: the optimizer has parameters that are not in the model.
        """
        made = copy.copy(self._first)  # through Optimizer.__getstate__, which omits the hooks
        made._optimizer_step_pre_hooks.update(self._users[0])
        made._optimizer_step_post_hooks.update(self._users[1])
        for name, value in vars(self._first).items():
            if name not in vars(made) and name != "step":  # a scheduler stores a bound `step` of the original there
                setattr(made, name, value)
        try:
            made.param_groups = [
                _Group(group, [aliases[one] for one in group["params"]])  # type: ignore[misc]
                for group in self._first.param_groups
            ]
        except KeyError:
            raise ConfigError(
                f"threads: {type(self._first).__name__} has parameters that are not in the model given to "
                "session.setup: put them into the model, or use threads = 1"
            ) from None
        made.state = defaultdict(dict)
        for one in chain.from_iterable(group["params"] for group in self._first.param_groups):
            made.state[aliases[one]] = self._first.state[one]
        self._watch(made)
        return made

    def _watch(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        return [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._holder is optimizer:  # an error, which the user caught, interrupted its previous step
            return
        if not self._begun or (not self._stateless and self._lacks(optimizer)):
            self._filling.acquire()
            self._holder = optimizer

    def _lacks(self, optimizer: torch.optim.Optimizer) -> bool:
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        return any(one.grad is not None and not optimizer.state[one] for one in parameters)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._holder is optimizer:
            self._begun, self._stateless = True, not any(optimizer.state.values())
            self.let_go(optimizer)

    def let_go(self, optimizer: torch.optim.Optimizer) -> None:
        """Release the lock if this copy holds it; its thread has ended, perhaps in the middle of a step."""
        if self._holder is optimizer:
            self._holder = None
            self._filling.release()

    def close(self) -> None:
        """Remove the hooks; the user's optimizer keeps the common state."""
        for hook in self._hooks:
            hook.remove()
        # `copy` has created an entry for every parameter, also for those that never got a gradient.
        for one in [one for one, state in self._first.state.items() if not state]:
            del self._first.state[one]
