"""The state of merges between exchanges, and the part of a replica that an exchange is of."""

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uneven.errors import ConfigError
from uneven.policy.core.actions import Combined, Exchange, Merge, Payload, span
from uneven.policy.core.plain import loading, read
from uneven.policy.merge import Kept
from uneven.policy.samples.order import Portions
from uneven.policy.sync import SyncPolicy
from uneven.run.replicas.flat import Flat


def taken(parts: Portions, unused: Portions) -> tuple[Portions, Portions]:
    """Split in-flight portions: those an optimizer step has used, and those that count as used although none has."""
    return tuple(one for one in parts if one not in unused), tuple(one for one in unused if one not in parts)


def same_policy(policy: SyncPolicy, numbers: dict[str, Any]) -> bool:
    """Return whether the numbers are of this policy; then try to load its own state into a copy of it.
    Raises :class:`CheckpointError` if the numbers name no policy, or if it cannot load its own."""
    with loading("the agreement"):
        if read(dict[str, Any], numbers).get("policy") != repr(policy):
            read(str, numbers.get("policy"))
            return False
        copy.deepcopy(policy).load_state_dict(read(dict[str, Any], numbers.get("own")))
    return True


_MOVED = -1  # the place of movements; the place of a piece is its number
_OF_MOVED = "movements-"


class PayloadView(NamedTuple):
    """The part of the vector that an exchange is of.

    Attributes:
        place: of the merge's state.
        cut: slice of the vector.
        separate: number of statistics behind it, which are averaged as they are.
        kept: the merge's state; empty if it keeps nothing.
        base: subtracted first, of the same shape; None subtracts nothing.
    """

    place: int
    cut: slice
    separate: int
    kept: Kept
    base: Tensor | None


@dataclass(slots=True)
class MergeState:
    """The state of a replica's merges.

    Attributes:
        pieces: number of pieces that are exchanged in turn; 0 if all parameters are exchanged together.
        kept: of each piece (0 for all parameters), and of movements.
        base: where movements begin, shape (trained,).
        outcome: of the last mean, if it is the model to evaluate: parameters, statistics.
    """

    pieces: int
    kept: dict[int, Kept] = field(default_factory=dict)
    base: Tensor | None = None
    outcome: tuple[Tensor, Tensor] | None = None

    def begin(self, merge: Merge, start: Tensor) -> None:
        """Initialize the state of a mean, of each piece; ``start`` has shape (size,)."""
        for place in range(self.pieces or 1):
            self.kept[place] = merge.begin(start[self._cut(place, len(start))].clone())
        if "centre" in self.kept[0]:
            raise ConfigError(f"{merge!r} keeps a 'centre', the name under which means are stored: rename it")

    def begin_moving(self, merge: Merge, start: Tensor) -> None:
        self.kept[_MOVED], self.base = merge.begin(start.clone()), start.clone()

    def _cut(self, place: int, size: int) -> slice:
        return span((place, self.pieces or 1), size)

    def view(self, exchange: Exchange, flat: Flat) -> PayloadView:
        """Return the part of the vector that an exchange is of, with its state."""
        merge, piece, base = exchange.merge, exchange.piece, None
        place, end = piece[0] if piece else 0, flat.trained
        if exchange.payload is Payload.DELTA:
            place, base = _MOVED, self.base
        elif piece is None and (merge.whole or merge.combined is Combined.CENTRE):
            end = flat.size
        kept = self.kept.get(place, {}) if merge.keeps else {}
        return PayloadView(place, span(piece, end), flat.size - end, kept, base)

    def store(self, view: PayloadView, found: Kept, outcome: Tensor, statistics: Tensor, memory: Tensor) -> None:
        """Keep state and outcome of a mean; the next exchange overwrites ``memory``, that of the sum."""

        def own(one: Tensor) -> Tensor:
            return one.clone() if one.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr() else one

        if found:
            self.kept[view.place] = {key: own(one) if isinstance(one, Tensor) else one for key, one in found.items()}
        if self.outcome is None or view.base is not None:
            return
        if self.pieces:
            self.outcome[0][view.cut].copy_(outcome)
            self.outcome[1].copy_(statistics)
        else:
            trained = len(self.outcome[0])
            parameters = own(outcome)
            self.outcome = parameters[:trained], torch.cat((parameters[trained:], statistics))

    @property
    def centre(self) -> Tensor:
        """The point that the replicas last started from, shape (size,), if it was announced."""
        centre: Tensor = self.kept[0]["centre"] if self.outcome is None else torch.cat(self.outcome)
        return centre

    def saved(self) -> Kept:
        """Return all of it by its names in a checkpoint: vectors of the whole, numbers by piece."""
        saved = {_OF_MOVED + key: one for key, one in self.kept.get(_MOVED, {}).items()}
        if self.base is not None:
            saved[_OF_MOVED + "base"] = self.base
        for key, value in self.kept.get(0, {}).items():
            parts = [self.kept[number][key] for number in range(self.pieces or 1)]
            if isinstance(value, Tensor):
                saved[key] = torch.cat(parts)
            else:
                saved |= {self._named(key, number): one for number, one in enumerate(parts)}
        if self.outcome is not None:
            saved["centre"] = self.centre
        return saved

    def load(self, saved: Kept, *, centred: int) -> None:
        """Load :meth:`saved`; ``centred`` is the number of parameters if the last mean's outcome is kept, or 0."""
        moved = {key.removeprefix(_OF_MOVED): saved.pop(key) for key in list(saved) if key.startswith(_OF_MOVED)}
        if moved:
            self.base, self.kept[_MOVED] = moved.pop("base"), moved
        if centred:
            parameters, statistics = saved.pop("centre").tensor_split([centred])
            self.outcome = parameters, statistics
        for place in range(self.pieces or 1):
            end, kept = self._named("", place), self.kept.setdefault(place, {})
            for key, one in saved.items():
                if isinstance(one, Tensor):
                    kept[key] = one[self._cut(place, len(one))]
                elif key.endswith(end):
                    kept[key.removesuffix(end)] = one

    def _named(self, key: str, number: int) -> str:
        return f"{key} of piece {number}" if self.pieces else key
