"""A loader's place in the run as plain data, and the checks before it is taken up again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uneven.data.order import Cursor
from uneven.errors import CheckpointError

SCHEMA = 1


def write_state(
    cursor: Cursor, *, seed: int, shuffle: bool, length: int | None, batch_size: int
) -> dict[str, Any]:
    """JSON-able. ``length`` is None for a stream; ``cursor`` counts the samples of the epoch used so far."""
    return {
        "schema": SCHEMA,
        "seed": seed,
        "shuffle": shuffle,
        "length": length,
        "batch_size": batch_size,
        "epoch": cursor.epoch,
        "cursor": cursor.start,
        "iteration": cursor.iteration,
    }


def read_state(state: Mapping[str, Any], *, seed: int, shuffle: bool, length: int | None) -> Cursor:
    """The place that ``state`` names, if it belongs to a run with this order.

    Raises:
        CheckpointError: another schema, seed, shuffling or data set length, with both values; a key that is
            missing or no sensible number.
    """
    if state.get("schema") != SCHEMA:
        raise CheckpointError(
            f"loader state has schema {state.get('schema')!r}, this is {SCHEMA}: read it with the version of "
            "uneven that wrote it"
        )
    _same_order(state, {"seed": seed, "shuffle": shuffle, "length": length})
    epoch, start, iteration = (_count(state, key) for key in ("epoch", "cursor", "iteration"))
    if length is not None and start > length:
        raise CheckpointError(f"loader state is damaged: cursor {start} is beyond the {length} samples")
    return Cursor(epoch=epoch, start=start, iteration=iteration)


_CURE = {
    "seed": "start with the seed of the checkpoint, as the order of the samples hangs on it",
    "shuffle": "start with the shuffle of the checkpoint, as the order of the samples hangs on it",
    "length": "resume with the data set that the run began with, or start afresh",
}


def _same_order(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    for key, value in mine.items():
        if key not in state:
            raise CheckpointError(f"loader state is damaged: it has no {key!r}")
        if state[key] != value:
            what = "data set length" if key == "length" else key
            raise CheckpointError(
                f"{what} of the checkpoint is {_said(key, state[key])}, of this run {_said(key, value)}: "
                f"{_CURE[key]}"
            )


def _said(key: str, value: Any) -> str:
    return "unknown (a stream)" if key == "length" and value is None else repr(value)


def _count(state: Mapping[str, Any], key: str) -> int:
    value = state.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"loader state is damaged: {key} = {value!r}, expected a count of 0 or more")
    return value
