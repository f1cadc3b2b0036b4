"""Collects the state of a run from its loop for a checkpoint, and loads it."""

import json
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from uneven.errors import CheckpointError
from uneven.policy.core.plain import Misfit, loading, read
from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.step.loop import StepLoop

SCHEMA = 2
_KEYS = {"schema", "loader", "control"}
_LATER = {"agreement": "{}", "vectors": {}, "parts": "{}", "tensors": {}}  # keys that older states of this schema lack
_TEXTS = ("loader", "control", "agreement", "parts")


@dataclass(frozen=True, slots=True)
class State:
    """The state of a session, by the component that keeps it; JSON texts and tensors, so nothing has to be unpickled.

    The keys are the same on every rank and with every balancer, because ``torch.distributed.checkpoint`` loads into the
    state of a new session.
    """

    loader: dict[str, Any] = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)  # of the slow loop
    agreement: dict[str, Any] = field(default_factory=dict)  # of the policy and its merges
    vectors: dict[str, Tensor] = field(default_factory=dict)  # of the policy: centre or momentum, flat, of model size
    parts: dict[str, Any] = field(default_factory=dict)  # of the callbacks given to the session
    tensors: dict[str, Tensor] = field(default_factory=dict)  # of the callbacks


def pack(state: State) -> dict[str, Any]:
    """Return the state as plain data and tensors."""
    return {
        "schema": SCHEMA,
        "loader": json.dumps(state.loader),
        "control": json.dumps(state.control),
        "agreement": json.dumps(state.agreement),
        "vectors": dict(state.vectors),
        "parts": json.dumps(state.parts),
        "tensors": dict(state.tensors),
    }


def unpack(state: dict[str, Any]) -> State:
    """Invert :func:`pack`.

    Raises:
        CheckpointError: ``state`` is not a session's state, has another schema, or is damaged.
    """
    if not isinstance(state, dict) or not _KEYS <= set(state) <= _KEYS | set(_LATER):
        keys = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"not the state of a session (found {keys}): pass the result of session.state_dict()")
    if state["schema"] != SCHEMA:
        raise CheckpointError(
            f"session state of schema {state['schema']}, this version reads {SCHEMA}: "
            f"resume with the version of uneven that wrote it"
        )
    state = {**_LATER, **state}
    try:
        loader, control, agreement, parts = (json.loads(state[key]) for key in _TEXTS)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"session state cannot be read ({error}): the checkpoint is damaged") from error
    with loading("the session"):
        vectors: dict[str, Tensor] = read(dict[str, Any], state["vectors"])
        read(dict[str, dict[str, Any]], dict(zip(_TEXTS, (loader, control, agreement, parts), strict=True)))
        tensors: dict[str, Tensor] = read(dict[str, Any], state["tensors"])
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                raise Misfit(tensor, "a tensor", f"tensors.{name}")
        for name, vector in vectors.items():
            if not (isinstance(vector, Tensor) and vector.ndim == 1 and vector.is_floating_point()):
                raise Misfit(vector, "a vector of floating-point numbers", f"vectors.{name}")
    return State(loader, control, agreement, dict(vectors), parts, dict(tensors))


class Checkpoint:
    """The state of a run, as plain data. A loaded one waits for the loader."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop
        self._loaded: dict[str, Any] | None = None

    def state_dict(self, several: tuple[Portion, ...]) -> dict[str, Any]:
        """Return the state of this run; ``several`` are the batches that several threads are training on."""
        loop, loader = self._loop, self._loop.loader
        if loader is None and self._loaded is not None:
            return self._loaded
        hand = several if loop.part is None else (loop.part,)
        agreement, vectors = loop.model.agreement.state_dict(hand, loop.hands.unused())
        lacking = agreement.pop("lacking", None)
        place = {} if loader is None else loader.state_dict(lacking)
        return pack(State(place, loop.reports.state_dict(), agreement, vectors, *loop.callbacks.state()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`; raises CheckpointError if it does not fit or is damaged."""
        unpack(state)  # fail here on an invalid state, not when the loader is made
        if self._loop.context.participants.joins_later:
            return  # it receives the current state from a member instead
        self._loaded = state
        self._take_up()

    def begin_with(self, loader: BalancedLoader | DrawnSteps) -> None:
        """Make this the loader of the run, with the state that waits for it."""
        self._loop.loader = loader
        self._take_up()

    def _take_up(self) -> None:
        loop, loader = self._loop, self._loop.loader
        if self._loaded is None or loader is None:
            return
        saved, self._loaded = unpack(self._loaded), None
        if saved.loader:
            agreement = loop.model.agreement
            # Check everything first: a damaged state must not change half of the run.
            loader.check_state(saved.loader)
            if saved.agreement:
                agreement.check(saved.agreement, saved.vectors)
            loop.reports.load_state_dict(saved.control)
            if saved.agreement:
                agreement.load_state_dict(saved.agreement, saved.vectors)
            loader.load_state_dict(saved.loader)
        loop.callbacks.load(saved.parts, saved.tensors)
