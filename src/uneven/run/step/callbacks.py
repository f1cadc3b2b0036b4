"""Calls all callbacks of a session, in order, in the moments that they override."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.run.step.callback import Callback, CallbackContext, Step

_HELD = 32  # batches that a script may hold before it steps on them; see `uneven.run.samples.in_flight`

_MOMENTS = ("before_step", "gradients_ready", "after_step")


class Callbacks:
    """The callbacks of a session.

    Raises ConfigError if an object is not a callback, two have one name, or a name cannot be used in a state.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._steps: deque[Step] = deque(maxlen=_HELD)
        self.run: CallbackContext | None = None  # the run that they are attached to, once there is a model
        self._loaded: dict[str, Any] = {}
        self._take(callbacks)

    def adopt(self, model: nn.Module, threads: int) -> None:
        """Add the callbacks that modules of the model bring as their attribute ``uneven_callback``. Raises ConfigError
        if two have one name; or several threads train, and one overrides the moments of a step."""
        found = (getattr(module, "uneven_callback", None) for module in model.modules())
        brought = {id(one): one for one in found if isinstance(one, Callback) and one not in self._callbacks}
        if threads > 1 and (one := next((one for one in brought.values() if _wants_any(one)), None)):
            raise ConfigError(f"callback {one.name!r} with threads = {threads}: callbacks need threads = 1")
        self._take((*self._callbacks, *brought.values()))

    def _take(self, callbacks: Sequence[Callback]) -> None:
        for one in callbacks:
            if not isinstance(one, Callback):
                raise ConfigError(
                    f"callbacks={callbacks!r}: {one!r} is not an uneven.Callback; derive its class from uneven.Callback"
                )
        names = [one.name for one in callbacks]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"callbacks={callbacks!r}: two have the name {twice[0]!r}; override the property `name` of one"
            )
        if dotted := [name for name in names if not name or "." in name]:  # the state's tensors are named callback.key
            raise ConfigError(f"callbacks={callbacks!r}: {dotted[0]!r} is not a name: use a text without dots")
        self._callbacks = tuple(callbacks)
        self._before, self._ready, self._after = (
            [one for one in callbacks if _wants(one, moment)] for moment in _MOMENTS
        )
        self._reading = [one for one in callbacks if _wants(one, "batch_read")]
        self.wanted = any((self._before, self._ready, self._after))  # any moment of a step

    def attach(self, run: CallbackContext) -> None:
        """Attach all callbacks and load a state that came before."""
        if self._ready and not run.optimizers:
            raise ConfigError(
                f"callback {self._ready[0].name!r} has gradients_ready, which is called before the steps of the "
                "optimizers given to session.setup, but none was given: call session.setup(model, optimizer)"
            )
        self.run = run
        self._each(self._callbacks, "attach", run)
        self.load(self._loaded)

    def members_changed(self, members: tuple[int, ...]) -> None:
        if self.run is None:
            return
        self.run = replace(self.run, members=members)
        self.run.lines.members_changed(members)
        self._each(self._callbacks, "members_changed", members)

    @property
    def sees_optimizers(self) -> bool:
        return bool(self._ready)

    def before(self, step: Step) -> None:
        self._steps.append(step)
        self._each(self._before, "before_step", step)

    def ready(self, turn: BatchWeight | None, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Call ``gradients_ready``, before an optimizer's step; raises TrainingError if its closure makes the
        gradients in it."""
        if (step := self.now(turn)) is None:
            return  # outside of the loop: a warm-up, say
        if any(map(callable, args[1:])) or kwargs.get("closure") is not None:
            raise TrainingError(
                f"callback {self._ready[0].name!r} changes gradients before optimizer.step(), but a closure computes "
                "them inside it: call loss.backward() first, and optimizer.step() without a closure"
            )
        self._each(self._ready, "gradients_ready", step, optimizer)

    def now(self, turn: BatchWeight | None) -> Step | None:
        """Return the step of the batch of the newest forward pass; the newest step if that is unknown."""
        if not self._steps:
            return None
        step = self._steps[-1]
        if turn is None or turn.iteration == step.iteration:
            return step
        return next((one for one in self._steps if one.iteration == turn.iteration), step)

    @property
    def reads(self) -> bool:
        return bool(self._reading)

    def batch_read(self, ids: Any) -> None:
        self._each(self._reading, "batch_read", ids)

    def after(self) -> None:
        self._each(self._after, "after_step", self._steps[-1])

    @contextmanager
    def evaluation_model(self) -> Iterator[None]:
        with ExitStack() as stack:
            for one in self._callbacks:
                with _named(one, "evaluation_model"):
                    stack.enter_context(one.evaluation_model())
            yield

    def state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return plain data by the callback's name, and tensors of any shape by callback.key; or the state that was
        loaded. Raises CheckpointError if a callback returns something else."""
        plain: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for one in self._callbacks:
            with _named(one, "state_dict"):
                state = one.state_dict() if self.run is not None else self._loaded.get(one.name, {})
            tensors |= {f"{one.name}.{key}": it for key, it in state.items() if isinstance(it, torch.Tensor)}
            plain[one.name] = {key: it for key, it in state.items() if not isinstance(it, torch.Tensor)}
            try:
                # Fails now, with the callback's name, rather than when the checkpoint is written.
                json.dumps(plain[one.name])
            except (TypeError, ValueError) as error:
                why = f"the state of callback {one.name!r} is not plain data or tensors: {error}"
                raise CheckpointError(why) from error
            if (key := _no_text(state)) is not None:
                why = f"the state of callback {one.name!r} has the key {key!r}: keys must be texts, as in JSON"
                raise CheckpointError(why)
        return plain, tensors

    def for_newcomers(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return self.state()

    def take_over(self, state: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> None:
        self.load(*state)

    def load(self, plain: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> None:
        """Load the result of :meth:`state`, with tensors of any shape, also before :meth:`attach`.

        A callback without an entry keeps its initial state.
        """
        whole = {name: dict(state) for name, state in plain.items()}
        for key, it in (tensors or {}).items():
            name = next((one for one in whole if key.startswith(f"{one}.")), "")  # names have no dot
            whole.setdefault(name, {})[key.removeprefix(f"{name}.")] = it
        if self.run is None:
            self._loaded = whole
            return
        for one in self._callbacks:
            if one.name in whole:
                self._each([one], "load_state_dict", whole[one.name])

    def close(self) -> None:
        # An ExitStack closes the other callbacks even if one raises.
        with ExitStack() as stack:
            if self.run is not None:
                stack.callback(self.run.lines.close)
            for one in reversed(self._callbacks):
                stack.callback(self._each, [one], "close")

    def _each(self, callbacks: Iterable[Callback], moment: str, *args: Any) -> None:
        for one in callbacks:
            with _named(one, moment):
                getattr(one, moment)(*args)


@contextmanager
def _named(callback: Callback, moment: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by callback {callback.name!r}, in {moment}")
        raise


def _no_text(state: Any) -> Any:
    """Return a key of plain data that is not a text, because JSON would change it to one."""
    if isinstance(state, list | tuple):
        return next((key for one in state if (key := _no_text(one)) is not None), None)
    if not isinstance(state, dict):
        return None
    wrong = next((key for key in state if not isinstance(key, str)), None)
    return _no_text(list(state.values())) if wrong is None else wrong


def _wants_any(callback: Callback) -> bool:
    return any(_wants(callback, moment) for moment in _MOMENTS)


def _wants(callback: Callback, moment: str) -> bool:
    return getattr(getattr(callback, moment), "__func__", None) is not getattr(Callback, moment)
