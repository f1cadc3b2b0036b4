"""A loader's place in the run as plain data, and the checks before it is loaded."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from uneven.errors import CheckpointError
from uneven.policy.samples.order import Cursor

SCHEMA = 1


def write_state(
    cursor: Cursor, *, seed: int, shuffle: bool, length: int | None, batch_size: int, kind: str = ""
) -> dict[str, Any]:
    """Return the JSON-able state at ``cursor``.

    ``length`` is None for a stream; ``kind`` is how the order is made, "" for the usual one.
    """
    return ({"order": kind} if kind else {}) | {
        "schema": SCHEMA,
        "seed": seed,
        "shuffle": shuffle,
        "length": length,
        "batch_size": batch_size,
        "epoch": cursor.epoch,
        "cursor": cursor.start,
        "iteration": cursor.iteration,
    }


def read_state(state: Mapping[str, Any], *, seed: int, shuffle: bool, length: int | None, kind: str = "") -> Cursor:
    """Return the place in ``state``, if it belongs to a run with this order.

    Raises CheckpointError if schema, seed, shuffling or data set length differ, or a key is missing or not a valid
    number.
    """
    if state.get("schema") != SCHEMA:
        raise CheckpointError(
            f"loader state has schema {state.get('schema')!r}, this is {SCHEMA}: read it with the version of "
            "uneven that wrote it"
        )
    if (was := state.get("order", "")) != kind:
        raise CheckpointError(
            f"the samples of the checkpoint were ordered by {_ORDERS.get(was, was)}, those of this run by "
            f"{_ORDERS[kind]}: resume with the same sampler, on the same data"
        )
    _same_order(state, {"seed": seed, "shuffle": shuffle, "length": length})
    epoch, start, iteration = (_count(state, key) for key in ("epoch", "cursor", "iteration"))
    if length is not None and kind != "batches" and start > length:
        raise CheckpointError(f"loader state is damaged: cursor {start} is beyond the {length} samples")
    return Cursor(epoch=epoch, start=start, iteration=iteration)


_ORDERS = {
    "": "seed and epoch",
    "keyed": "seed and epoch, computed on demand",
    "sampler": "a sampler",
    "batches": "a batch sampler",
    "shards": "the ranks' own shards",
}


def read_reached(state: Mapping[str, Any], cursor: Cursor) -> int:
    """Return the script's epoch, which is later than the place's if samples of earlier epochs are unused."""
    return _count(state, "reached") if "reached" in state else cursor.epoch


def read_left(state: Mapping[str, Any], cursor: Cursor, usable: int) -> list[tuple[int, int]]:
    """Return the positions of the epoch that are left, as runs; raises CheckpointError if they overlap or are not runs.

    A state of asynchronous workers lists them; otherwise they start at the cursor.
    """
    if "left" not in state:
        return [(cursor.start, usable)] if cursor.start < usable else []
    runs = state["left"]
    sound = isinstance(runs, list) and all(_is_run(run) for run in runs)
    if sound and all(a[1] <= b[0] for a, b in pairwise(sorted(runs))) and (not runs or max(runs)[1] <= usable):
        return [(first, last) for first, last in runs]
    raise CheckpointError(f"loader state is damaged: left = {runs!r}, expected runs of positions up to {usable}")


def read_again(state: Mapping[str, Any], cursor: Cursor) -> list[tuple[int, int]]:
    """Return the runs of requeued positions before the cursor; raises CheckpointError if they overlap or are not
    runs."""
    runs = state.get("again", [])
    sound = isinstance(runs, list) and all(_is_run(run) for run in runs)
    if sound and all(a[1] <= b[0] for a, b in pairwise(sorted(runs))) and (not runs or max(runs)[1] <= cursor.start):
        return [(first, last) for first, last in runs]
    raise CheckpointError(f"loader state is damaged: again = {runs!r}, expected runs of positions up to {cursor.start}")


def _is_run(run: Any) -> bool:
    return (
        isinstance(run, list | tuple)
        and len(run) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) for one in run)
        and 0 <= run[0] < run[1]
    )


_CURE = {
    "seed": "start with the seed of the checkpoint, because it determines the order of the samples",
    "shuffle": "start with the shuffle of the checkpoint, because it determines the order of the samples",
    "length": "resume with the data set that the run began with, or start again",
}


def _same_order(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    for key, value in mine.items():
        if key not in state:
            raise CheckpointError(f"loader state is damaged: it has no {key!r}")
        if state[key] != value:
            what = "data set length" if key == "length" else key
            raise CheckpointError(
                f"{what} of the checkpoint is {_said(key, state[key])}, of this run {_said(key, value)}: {_CURE[key]}"
            )


def _said(key: str, value: Any) -> str:
    return "unknown (a stream)" if key == "length" and value is None else repr(value)


def _count(state: Mapping[str, Any], key: str) -> int:
    value = state.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"loader state is damaged: {key} = {value!r}, expected a count of 0 or more")
    return value
