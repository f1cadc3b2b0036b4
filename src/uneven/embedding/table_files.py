"""Files of saved rows: each shard writes its own, block by block from the live array; any number of shards can read
them.

::

    FOLDER/TABLE-START-STOP.rows.npy    float32, shape (stop − start, dim)
    FOLDER/TABLE-START-STOP.sums.npy    Adagrad's, shape (stop − start,)
    FOLDER/TABLE-START-STOP.ids.npy     growing table: id of each row; row 0 is shared by all others
    FOLDER/TABLE-START-STOP.taken.npy   growing table: which rows are in use
    FOLDER/TABLE-START-STOP.disk        table on disk, instead of the others: its records, see `table_disk.py`
    FOLDER/TABLE-START-STOP.newer       and those that replace them, each after its number in the range, int32
    FOLDER/shard-N.json                 written last: tables, ranges, and a lower bound of the updates in them;
                                        in a shard's own folder also the folder that its rows were loaded from

A shard that trains while it writes saves rows of different times, each one consistent. It copies a block between two
messages, and a thread writes the block. So the shard waits only if the disk is slower than its workers.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from uneven.embedding.pure.dynamic_ids import IdMap, bucket
from uneven.embedding.pure.shard_tables import HeldRange, Holding, ShardSpec, StoredRows
from uneven.embedding.pure.sharding_plan import RowRange
from uneven.embedding.pure.table_shard import SavedNumbers
from uneven.embedding.table_disk import DiskRows, saved_rows
from uneven.errors import CheckpointError, reason
from uneven.runtime.npy import load_array

_BLOCK_BYTES = 1 << 20
_BLOCK_IDS = 1 << 16


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one shard."""

    own: Path | None  # folder for automatic saves, from which the shard restarts
    number: int  # of the shard

    def disks(self, spec: ShardSpec) -> dict[int, StoredRows]:
        """Return the rows of the groups on disk, all unwritten; raise :class:`ConfigError` if they do not fit."""
        home = None if self.own is None else self.own.parent
        return {at: DiskRows(spec, at, home) for at, one in enumerate(spec.groups) if one.slots}

    def saving(self, folder: str | None, holding: Holding, numbers: SavedNumbers) -> Generator[None, None, None]:
        """Write all rows to ``folder`` (None: the shard's own), one block per step; raises OSError if it cannot."""
        where = self._older() if folder is None else Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        mark = where / f"shard-{self.number}.json"
        mark.unlink(missing_ok=True)  # a folder without it is incomplete, and ignored
        maps = [one for one in holding.maps if one is not None]
        for one in maps:
            one.held = True  # no eviction: a row's id must stay the same until both are written
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="saving") as background:
                yield from _all_written(where, holding, background)
        finally:
            for one in maps:
                one.held = False
        ranges = [[held.table, held.start, held.stop] for held in holding]
        _say(mark, {"tables": holding.spec.text, "ranges": ranges, **numbers._asdict()})

    def loaded(self, folder: str, holding: Holding, numbers: SavedNumbers) -> None:
        """Record for a restart that the rows come from ``folder``. ``numbers.version`` must exceed earlier ones."""
        if self.own is None:
            return
        where = self._older()
        where.mkdir(parents=True, exist_ok=True)
        said = {"tables": holding.spec.text, "ranges": [], "loaded": folder, **numbers._asdict()}
        _say(where / f"shard-{self.number}.json", said)

    def restore(self, holding: Holding) -> SavedNumbers | None:
        """Load the newest save or recorded folder of these rows, or None; raise :class:`CheckpointError` if damaged."""
        found = [one for one in self._places() if _said(one, self.number).get("tables") == holding.spec.text]
        if not found:
            return None
        newest = max(found, key=lambda one: _said(one, self.number)["version"])
        said = _said(newest, self.number)
        self.load(said.get("loaded") or str(newest), holding)
        return SavedNumbers(said["version"], {int(rank): many for rank, many in said["sequences"].items()})

    def load(self, folder: str, holding: Holding) -> None:
        """Load a folder of any shards; raise :class:`CheckpointError` if rows are missing, duplicated or misshapen."""
        if not (saves := newest_saves(Path(folder)).values()):
            raise CheckpointError("it has no saved tables: name a folder of save_checkpoint() on the server's machine")
        ranges: list[tuple[str, int, int, int, Path]] = []
        for where, said in saves:
            rows = {one.name: one.held for one in ShardSpec.read(said["tables"]).tables.tables}
            ranges += [(*one, rows.get(one[0], 0), where) for one in said["ranges"]]
        for held in holding:
            # All tables are checked before any row changes.
            _check_once(held, [(start, stop, many) for table, start, stop, many, _ in ranges if table == held.table])
        if len({said.get("save", 0) for _, said in saves if said["ranges"]}) > 1:
            raise CheckpointError("the last save into it was not completed by all servers: load another folder")
        for disk in holding.disks.values():
            disk.clear()
        for held in holding:
            if held.map is not None:
                held.map.clear()
            for table, start, stop, many, where in ranges:
                low, high = max(start, held.start), min(stop, held.stop)
                if table == held.table and (low < high or many != held.many):  # a table that grows has other buckets
                    stem = where / f"{table}-{start}-{stop}"
                    if stem.with_name(f"{stem.name}.disk").exists():
                        part = RowRange(held.number, start, stop)
                        blocks = saved_rows(stem, holding.spec, part, low, high, every=held.disk is None)
                        for numbers, found, sums, recent in blocks:  # with SGD each sum is 0
                            _put(held, numbers, found, np.where(sums, sums, np.float32(held.first_sum)), recent)
                    elif held.map is None:
                        _read(stem, held, start, low, high)
                    else:
                        _read_grown(stem, held, held.map)

    def _places(self) -> list[Path]:
        return [] if self.own is None else [self.own / name for name in ("a", "b")]

    def _older(self) -> Path:
        assert self.own is not None
        # the newer save survives a failed one
        return min(self._places(), key=lambda one: _said(one, self.number).get("version", -1))


def newest_saves(folder: Path) -> dict[int, tuple[Path, dict[str, Any]]]:
    """Return the place and the description of each shard's newest save in ``folder``, which may be an automatic one."""
    found: dict[int, tuple[Path, dict[str, Any]]] = {}
    for mark in (*folder.glob("shard-*.json"), *folder.glob("[ab]/shard-*.json")):
        number = int(mark.stem[6:]) if mark.stem[6:].isdecimal() else -1
        said = _said(mark.parent, number)
        if said and (number not in found or said["version"] > found[number][1]["version"]):
            found[number] = mark.parent, said
    return found


def _stem(held: HeldRange) -> str:
    return f"{held.table}-{held.start}-{held.stop}"


def _check_once(held: HeldRange, ranges: Sequence[tuple[int, int, int]]) -> None:
    """Raise :class:`CheckpointError` unless the folder has each row of the range exactly once. ``ranges``: first row,
    end, and number of rows of the table."""
    many = {one for _, _, one in ranges} or {held.many}
    if many != {held.many}:
        if len(many) > 1 or held.map is None:
            there = " and ".join(f"{one:,}" for one in sorted(many))
            raise CheckpointError(
                f"table {held.table!r} has {there} rows there, and {held.many:,} here: make them equal"
            )
        held = held._replace(start=0, stop=min(many))  # its ids have other buckets here
    cuts = sorted((max(start, held.start), min(stop, held.stop)) for start, stop, _ in ranges)
    cuts = [(low, high) for low, high in cuts if low < high]
    if any(high > low for (_, high), (low, _) in pairwise(cuts)):
        raise CheckpointError(
            f"it has rows of table {held.table!r} more than once, because runs with different numbers of "
            "servers saved into it: save each into its own folder"
        )
    if missing := held.stop - held.start - sum(high - low for low, high in cuts):
        raise CheckpointError(f"it lacks {missing:,} rows of table {held.table!r}: restore what all servers saved")


def _say(mark: Path, said: dict[str, Any]) -> None:
    part = mark.with_suffix(".part")
    part.write_text(json.dumps(said), encoding="utf-8")
    part.replace(mark)  # atomic


def _all_written(where: Path, holding: Holding, background: Executor) -> Iterator[None]:
    for held in holding:
        if held.disk is not None:
            yield from held.disk.saving(where / _stem(held), held.base, background)
            continue
        (where / f"{_stem(held)}.disk").unlink(missing_ok=True)  # of an earlier save, while the table was on disk
        arrays: dict[str, np.ndarray] = {"rows": held.rows, "sums": held.sums}
        if held.map is not None:  # no id is evicted during the save, and rows added from now on are left out
            used = held.map.used
            taken = np.zeros(used, bool)
            taken[held.map.taken()] = True
            arrays = {name: array[:used] for name, array in arrays.items()}
            arrays |= {"ids": held.map.ids[:used].copy(), "taken": taken}
        for name, array in arrays.items():
            yield from _written(where / f"{_stem(held)}.{name}.npy", array, background)


def _said(folder: Path, number: int) -> dict[str, Any]:
    try:
        found = json.loads((folder / f"shard-{number}.json").read_bytes())
        ranges = [(str(table), int(start), int(stop)) for table, start, stop in found["ranges"]]
        return {**found, "tables": str(found["tables"]), "version": int(found["version"]), "ranges": ranges}
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # never written, truncated, or of another program
        return {}


def _written(path: Path, array: np.ndarray, background: Executor) -> Iterator[None]:
    each = max(1, _BLOCK_BYTES // max(1, array[:1].nbytes))
    # Double buffering: one block is written while the next is copied.
    blocks = np.empty((2, min(each, len(array)), *array.shape[1:]), array.dtype)
    under_way: Future[int] | None = None
    with path.open("wb") as file:
        header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for place, start in enumerate(range(0, len(array), each)):
            taken = array[start : start + each]
            block = blocks[place % 2, : len(taken)]
            block[:] = taken
            if under_way is not None:
                under_way.result()
            under_way = background.submit(file.write, block.data)
            yield
        if under_way is not None:
            under_way.result()


def _loaded(stem: Path, name: str, into: np.ndarray | None = None) -> np.ndarray:
    path = stem.with_name(f"{stem.name}.{name}.npy")
    try:
        saved: np.ndarray = load_array(path, mapped=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {reason(error)}") from error
    if into is not None and len(saved) and saved.shape[1:] != into.shape[1:]:
        raise CheckpointError(
            f"{path} has rows of shape {saved.shape[1:]}, but the table has {into.shape[1:]}: make them equal"
        )
    return saved


def _put(held: HeldRange, numbers: np.ndarray, rows: np.ndarray, sums: np.ndarray, recent: bool = False) -> None:
    """Set rows (n, dim) and sums (n,) of a table by their numbers (n,) in it."""
    if held.disk is not None:
        held.disk.load((numbers - held.start + held.base).astype(np.int32), rows, sums, recent=recent)
    else:
        held.rows[numbers - held.start] = rows
        if len(held.sums):  # empty with SGD
            held.sums[numbers - held.start] = sums


def _read(stem: Path, held: HeldRange, start: int, low: int, high: int) -> None:
    rows, sums = _loaded(stem, "rows", held.rows), _loaded(stem, "sums", held.sums)
    for at in range(low, high, _BLOCK_IDS):
        numbers = np.arange(at, min(at + _BLOCK_IDS, high))
        some = slice(at - start, at - start + len(numbers))
        # Sums that another optimizer has not saved start from their initial value.
        _put(held, numbers, rows[some], sums[some] if len(sums) else np.full(len(numbers), held.first_sum, np.float32))


def _read_grown(stem: Path, held: HeldRange, ids_of: IdMap) -> None:
    """Load the rows whose ids belong here, as long as there is room."""
    ids, taken = _loaded(stem, "ids"), _loaded(stem, "taken")
    arrays = [(into, _loaded(stem, name, into)) for name, into in (("rows", held.rows), ("sums", held.sums))]
    for into, saved in arrays:
        into[:1] = saved[:1] if len(saved) else held.first_sum
    for begin in range(0, len(ids), _BLOCK_IDS):
        block = np.asarray(ids[begin : begin + _BLOCK_IDS])
        part = bucket(block, held.many)
        mine = np.flatnonzero(taken[begin : begin + _BLOCK_IDS] & (part >= held.start) & (part < held.stop))
        slots = ids_of.take(block[mine])
        for into, saved in arrays:
            if len(into):
                into[slots[slots > 0]] = saved[begin + mine[slots > 0]] if len(saved) else held.first_sum
