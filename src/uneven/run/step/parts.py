"""Calls all parts of a session, in order, in the moments that they override."""

from __future__ import annotations

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
from uneven.run.step.part import Part, Run, Step

_HELD = 32  # batches that a script may hold before it steps on them; see `uneven.run.samples.in_flight`

_MOMENTS = ("before_step", "gradients_ready", "after_step")


class Parts:
    """The parts of a session.

    Raises ConfigError if an object is not a part, two have one name, or a name cannot be used in a state.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._steps: deque[Step] = deque(maxlen=_HELD)
        self.run: Run | None = None  # the run that they are attached to, once there is a model
        self._loaded: dict[str, Any] = {}
        self._take(parts)

    def adopt(self, model: nn.Module, threads: int) -> None:
        """Add the parts that modules of the model bring as their attribute ``uneven_part``. Raises ConfigError if
        two have one name; or several threads train, and one overrides the moments of a step."""
        found = (getattr(module, "uneven_part", None) for module in model.modules())
        brought = {id(one): one for one in found if isinstance(one, Part) and one not in self._parts}
        if threads > 1 and (one := next((one for one in brought.values() if _wants_any(one)), None)):
            raise ConfigError(f"part {one.name!r} with threads = {threads}: parts need threads = 1")
        self._take((*self._parts, *brought.values()))

    def _take(self, parts: Sequence[Part]) -> None:
        for one in parts:
            if not isinstance(one, Part):
                raise ConfigError(f"parts={parts!r}: {one!r} is not an uneven.Part; derive its class from uneven.Part")
        names = [one.name for one in parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"parts={parts!r}: two have the name {twice[0]!r}; override the property `name` of one")
        if dotted := [name for name in names if not name or "." in name]:  # the state's tensors are named part.key
            raise ConfigError(f"parts={parts!r}: {dotted[0]!r} is not a name: use a text without dots")
        self._parts = tuple(parts)
        self._before, self._ready, self._after = ([one for one in parts if _wants(one, moment)] for moment in _MOMENTS)
        self._reading = [one for one in parts if _wants(one, "batch_read")]
        self.wanted = any((self._before, self._ready, self._after))  # any moment of a step

    def attach(self, run: Run) -> None:
        """Attach all parts and load a state that came before."""
        if self._ready and not run.optimizers:
            raise ConfigError(
                f"part {self._ready[0].name!r} has gradients_ready, which is called before the steps of the "
                "optimizers given to session.setup, but none was given: call session.setup(model, optimizer)"
            )
        self.run = run
        self._each(self._parts, "attach", run)
        self.load(self._loaded)

    def members_changed(self, members: tuple[int, ...]) -> None:
        if self.run is None:
            return
        self.run = replace(self.run, members=members)
        self.run.lines.members_changed(members)
        self._each(self._parts, "members_changed", members)

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
                f"part {self._ready[0].name!r} changes gradients before optimizer.step(), but a closure computes "
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
    def evaluated(self) -> Iterator[None]:
        with ExitStack() as stack:
            for one in self._parts:
                with _named(one, "evaluated"):
                    stack.enter_context(one.evaluated())
            yield

    def state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return plain data by the part's name, and tensors of any shape by part.key; or the state that was loaded.
        Raises CheckpointError if a part returns something else."""
        plain: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for one in self._parts:
            with _named(one, "state_dict"):
                state = one.state_dict() if self.run is not None else self._loaded.get(one.name, {})
            tensors |= {f"{one.name}.{key}": it for key, it in state.items() if isinstance(it, torch.Tensor)}
            plain[one.name] = {key: it for key, it in state.items() if not isinstance(it, torch.Tensor)}
            try:
                # Fails now, with the part's name, rather than when the checkpoint is written.
                json.dumps(plain[one.name])
            except (TypeError, ValueError) as error:
                why = f"the state of part {one.name!r} is neither plain data nor tensors: {error}"
                raise CheckpointError(why) from error
            if (key := _no_text(state)) is not None:
                why = f"the state of part {one.name!r} has the key {key!r}; keys are texts, as JSON would make them so"
                raise CheckpointError(why)
        return plain, tensors

    def for_newcomers(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return self.state()

    def take_over(self, state: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> None:
        self.load(*state)

    def load(self, plain: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> None:
        """Load the result of :meth:`state`, with tensors of any shape, also before :meth:`attach`.

        A part without an entry keeps its initial state.
        """
        whole = {name: dict(state) for name, state in plain.items()}
        for key, it in (tensors or {}).items():
            name = next((one for one in whole if key.startswith(f"{one}.")), "")  # names have no dot
            whole.setdefault(name, {})[key.removeprefix(f"{name}.")] = it
        if self.run is None:
            self._loaded = whole
            return
        for one in self._parts:
            if one.name in whole:
                self._each([one], "load_state_dict", whole[one.name])

    def close(self) -> None:
        # An ExitStack closes the other parts even if one raises.
        with ExitStack() as stack:
            if self.run is not None:
                stack.callback(self.run.lines.close)
            for one in reversed(self._parts):
                stack.callback(self._each, [one], "close")

    def _each(self, parts: Iterable[Part], moment: str, *args: Any) -> None:
        for one in parts:
            with _named(one, moment):
                getattr(one, moment)(*args)


@contextmanager
def _named(part: Part, moment: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by part {part.name!r}, in {moment}")
        raise


def _no_text(state: Any) -> Any:
    """Return a key of plain data that is not a text, because JSON would change it to one."""
    if isinstance(state, list | tuple):
        return next((key for one in state if (key := _no_text(one)) is not None), None)
    if not isinstance(state, dict):
        return None
    wrong = next((key for key in state if not isinstance(key, str)), None)
    return _no_text(list(state.values())) if wrong is None else wrong


def _wants_any(part: Part) -> bool:
    return any(_wants(part, moment) for moment in _MOMENTS)


def _wants(part: Part, moment: str) -> bool:
    return getattr(getattr(part, moment), "__func__", None) is not getattr(Part, moment)
