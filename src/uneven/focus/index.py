"""The index of one stream on disk: classes → clusters → objects → frames, and the crop of each centroid.

::

    STREAM/index.db     SQLite in write-ahead mode: readers never wait, and a killed writer loses only its transaction
    STREAM/crops.bin    the crop of centroid i at index i; bytes after the last committed one are overwritten
    STREAM/writer       locked by the process that ingests the stream; STREAM/owner by the one that started it

An ingest's state is committed together with its results, so it continues exactly after them.
"""

import io
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from uneven.errors import CheckpointError, ConfigError, DataError
from uneven.focus.pure.verdict_propagation import NO_PRECEDENTS, Precedents
from uneven.focus.truth import Crops
from uneven.runtime.npy import load_arrays
from uneven.runtime.system import lock

OTHER = -1  # class of the output for all classes without their own output
PLACES = 8  # least number of most likely outputs stored for each centroid; all K are if K is larger
HELD_ON_S = 10.0  # a process whose parent was killed ends in less time; its successor waits for that

_SCHEMA = 1
_TABLES = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE networks (id INTEGER PRIMARY KEY, setting TEXT NOT NULL, weights BLOB NOT NULL);
CREATE TABLE clusters (id INTEGER PRIMARY KEY, network INTEGER NOT NULL, sealed INTEGER NOT NULL DEFAULT 0);
CREATE TABLE entries (class INTEGER, cluster INTEGER, place INTEGER NOT NULL, confidence REAL NOT NULL,
                      PRIMARY KEY (class, cluster)) WITHOUT ROWID;
CREATE TABLE objects (cluster INTEGER, frame INTEGER, place INTEGER, time_s REAL, box TEXT,
                      PRIMARY KEY (cluster, frame, place)) WITHOUT ROWID;
CREATE TABLE verdicts (cluster INTEGER PRIMARY KEY, label INTEGER NOT NULL, score REAL NOT NULL);
CREATE TABLE progress (one INTEGER PRIMARY KEY CHECK (one = 0), counts TEXT NOT NULL, state BLOB NOT NULL);
"""

# Tables that the first indexes did not have; they are filled on demand.
_LATER = """
CREATE TABLE IF NOT EXISTS embeddings (network TEXT, cluster INTEGER, numbers BLOB NOT NULL,
                                       PRIMARY KEY (network, cluster)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settled (class INTEGER, cluster INTEGER, leader INTEGER NOT NULL,
                                    PRIMARY KEY (class, cluster)) WITHOUT ROWID;
"""

_JUDGE = "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)"
_EMBED = "INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)"

_FIND = """
SELECT clusters.id, entries.place, entries.confidence, COALESCE(own.label, led.label), COALESCE(own.score, led.score),
       own.label IS NOT NULL
FROM entries JOIN clusters ON clusters.id = entries.cluster LEFT JOIN verdicts own ON own.cluster = clusters.id
LEFT JOIN settled ON settled.cluster = clusters.id AND settled.class = ?
LEFT JOIN verdicts led ON led.cluster = settled.leader
WHERE entries.class = ? AND clusters.network = ? AND entries.place < ?
AND EXISTS (SELECT 1 FROM objects WHERE objects.cluster = clusters.id AND time_s >= ? AND time_s < ?)
ORDER BY clusters.id
"""


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster that may hold the requested class."""

    id: int
    place: int  # number of outputs of the cheap network that are more likely for its centroid
    confidence: float  # of the requested output
    verdict: tuple[int, float] | None  # class and score, of this centroid or of the one whose verdict it has
    judged: bool  # the truth network saw this centroid


@dataclass(slots=True)
class Gathered:
    """The results of an ingest since its last write.

    ``begun`` lists new clusters in order: number, network, centroid's crop, (class, confidence) by decreasing
    confidence, feature. ``members`` are cluster, frame, index in the frame, time in s, box.
    """

    begun: list[tuple[int, int, npt.NDArray[np.uint8], list[tuple[int, float]], npt.NDArray[np.float32]]]
    members: list[tuple[int, int, int, float, Sequence[int]]]  # cluster, frame, index in the frame, time in s, box
    sealed: list[int]


class StreamStore:
    """A stream's index; several processes may read it and write verdicts during an ingest.

    Raises CheckpointError if there is none in the folder, or one of another version, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "index.db").exists():
            raise CheckpointError(
                f"{folder} is not an index; make one with `uneven focus ingest VIDEO --into {folder.parent}`"
            )
        self._db = sqlite3.connect(folder / "index.db", timeout=30, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA synchronous = NORMAL")
            found = self.fact("schema")
        except sqlite3.DatabaseError as error:
            self._db.close()
            if error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):  # valid, but locked
                raise
            raise CheckpointError(
                f"{folder / 'index.db'} cannot be read as an index ({error}): delete {folder}, and ingest again"
            ) from error
        if found != _SCHEMA:
            raise CheckpointError(
                f"{folder} has schema {found}, but this version reads {_SCHEMA}: ingest the stream again"
            )
        self._db.executescript(_LATER)
        self.side = int(self.fact("side"))
        self._size = self.side**2 * 3

    @classmethod
    def create(
        cls, folder: Path, setting: dict[str, Any], weights: bytes, before: Precedents = NO_PRECEDENTS, **facts: Any
    ) -> "StreamStore":
        """Create an index with its first network, atomically; DataError if that fails. ``facts`` include the crops'
        ``side``."""
        with told_of_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / "index.part"
            part.unlink(missing_ok=True)
            with sqlite3.connect(part) as db:
                db.executescript(_TABLES + _LATER)
                rows = [(key, json.dumps(value)) for key, value in {"schema": _SCHEMA, **facts}.items()]
                db.executemany("INSERT INTO facts VALUES (?, ?)", rows)
                _insert_network(db, setting, weights, before)
            db.execute("PRAGMA journal_mode = WAL")
            db.close()
            part.replace(folder / "index.db")  # after close, which removes the write-ahead log of the part
        return cls(folder)

    def fact(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def add_network(self, setting: dict[str, Any], weights: bytes, before: Precedents = NO_PRECEDENTS) -> int:
        """Add the network for all later clusters, with the sample's verdicts ``before``; return its number."""
        with told_of_disk(self.folder), self.transaction() as db:
            return _insert_network(db, setting, weights, before)

    def networks(self) -> dict[int, dict[str, Any]]:
        """Return the settings of all networks by number, oldest first."""
        return {
            int(row[0]): json.loads(row[1]) for row in self._db.execute("SELECT id, setting FROM networks ORDER BY id")
        }

    def weights(self, network: int) -> bytes:
        return bytes(self._db.execute("SELECT weights FROM networks WHERE id = ?", (network,)).fetchone()[0])

    def progress(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Return the counts and arrays (any shape) from which the ingest continues; empty before the first write."""
        row = self._db.execute("SELECT counts, state FROM progress").fetchone()
        if row is None:
            return {}, {}
        return json.loads(row[0]), load_arrays(io.BytesIO(row[1]))

    def clusters(self) -> int:
        """Return the number of clusters, which are numbered from 0."""
        return int(self._db.execute("SELECT COALESCE(MAX(id) + 1, 0) FROM clusters").fetchone()[0])

    def find(self, label: int, entry: int, network: int, k: int, between_s: tuple[float, float]) -> list[ClusterRow]:
        """Return a network's clusters with an object in that time and the class among the centroid's K most likely."""
        # `entry` is the class under which they are stored: the label itself, or OTHER.
        rows = self._db.execute(_FIND, (label, entry, network, k, *between_s))
        return [
            ClusterRow(cluster, place, sure, None if verdict is None else (verdict, score), bool(judged))
            for cluster, place, sure, verdict, score, judged in rows
        ]

    def within(self, between_s: tuple[float, float]) -> list[int]:
        rows = self._db.execute(
            "SELECT DISTINCT cluster FROM objects WHERE time_s >= ? AND time_s < ? ORDER BY cluster", between_s
        )
        return [int(row[0]) for row in rows]

    def members(
        self, cluster: int, between_s: tuple[float, float]
    ) -> list[tuple[int, float, tuple[int, int, int, int]]]:
        """Return a cluster's objects in that time, in order: frame, time in s, box."""
        rows = self._db.execute(
            "SELECT frame, time_s, box FROM objects WHERE cluster = ? AND time_s >= ? AND time_s < ? "
            "ORDER BY frame, place",
            (cluster, *between_s),
        )
        return [(int(frame), float(time_s), tuple(json.loads(box))) for frame, time_s, box in rows]

    def crops(self, clusters: Sequence[int]) -> Crops:
        """Return centroids, (n, side, side, 3) uint8; raise CheckpointError if the file is too short."""
        if not clusters:
            return np.zeros((0, self.side, self.side, 3), np.uint8)
        try:
            crops = np.memmap(self.folder / "crops.bin", np.uint8, "r")
            # The file may end with a part of a crop whose write was interrupted.
            whole = crops[: len(crops) // self._size * self._size].reshape(-1, self.side, self.side, 3)
            return whole[np.asarray(clusters)]
        except (OSError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{self.folder / 'crops.bin'} does not match the index ({error}): delete the folder, and ingest again"
            ) from error

    def keep_verdicts(self, clusters: Sequence[int], labels: Iterable[int], scores: Iterable[float]) -> None:
        """Store the truth network's verdicts on centroids, so it is not asked again."""
        rows = [(one, int(label), float(score)) for one, label, score in zip(clusters, labels, scores, strict=True)]
        self._keep(_JUDGE, rows)

    def keep_settled(self, label: int, leaders: Mapping[int, int]) -> None:
        """Store for one class the clusters that have another cluster's verdict, as cluster → leader."""
        self._keep("INSERT OR REPLACE INTO settled VALUES (?, ?, ?)", [(label, *pair) for pair in leaders.items()])

    def numbers(self, network: str, clusters: Sequence[int]) -> dict[int, npt.NDArray[np.float32]]:
        """Return a network's stored outputs (dim,) by cluster, without clusters that it has not seen."""
        rows = self._db.execute(
            "SELECT cluster, numbers FROM embeddings WHERE network = ? AND cluster IN (SELECT value FROM json_each(?))",
            (network, json.dumps(list(clusters))),
        )
        return {int(cluster): np.frombuffer(numbers, np.float32) for cluster, numbers in rows}

    def once(
        self, network: str, clusters: Sequence[int], make: Callable[[Crops], npt.NDArray[np.float32]], batch: int = 256
    ) -> list[npt.NDArray[np.float32]]:
        """Return a network's outputs (dim,) for all these clusters; compute missing ones in batches and store them."""
        known = self.numbers(network, clusters)
        fresh = [one for one in clusters if one not in known]
        for part in (fresh[at : at + batch] for at in range(0, len(fresh), batch)):
            made = dict(zip(part, make(self.crops(part)), strict=True))
            self._keep(_EMBED, [(network, one, row.tobytes()) for one, row in made.items()])
            known |= made
        return [known[one] for one in clusters]

    def precedents(self, network: int) -> Precedents:
        """Return all verdicts on objects whose features by this network are stored."""
        rows = self._db.execute(
            "SELECT verdicts.cluster, label, score, numbers FROM verdicts JOIN embeddings USING (cluster) "
            "WHERE network = ? ORDER BY verdicts.cluster",
            (feature_of(network),),
        ).fetchall()
        if not rows:
            return NO_PRECEDENTS
        cluster, label, score, numbers = zip(*rows, strict=True)
        features = np.frombuffer(b"".join(numbers), np.float32).reshape(len(rows), -1)
        return Precedents(np.array(cluster), features, np.array(label), np.array(score, np.float32))

    def forget_verdicts(self) -> None:
        """Delete the verdicts of queries, so that the truth network is asked again. The sample's verdicts stay."""
        with told_of_disk(self.folder):
            self._db.executescript(
                "BEGIN IMMEDIATE; DELETE FROM verdicts WHERE cluster >= 0; DELETE FROM settled; COMMIT"
            )

    def judged(self, label: int) -> list[int]:
        """Return the clusters that the truth network has judged to be of a class, by decreasing score."""
        asked = "SELECT cluster FROM verdicts WHERE label = ? AND cluster >= 0 ORDER BY score DESC"
        rows = self._db.execute(asked, (label,))
        return [int(row[0]) for row in rows]

    def judgements(self) -> int:
        """Return the number of centroids that the truth network has judged in queries."""
        return int(self._db.execute("SELECT COUNT(*) FROM verdicts WHERE cluster >= 0").fetchone()[0])

    def _keep(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with told_of_disk(self.folder), self.transaction() as db:
            db.executemany(statement, rows)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE takes the write lock now; a later upgrade from a read would fail without waiting.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def _insert_network(db: sqlite3.Connection, setting: dict[str, Any], weights: bytes, before: Precedents) -> int:
    row = db.execute("INSERT INTO networks (setting, weights) VALUES (?, ?)", (json.dumps(setting), weights))
    number = int(row.lastrowid or 0)
    # Objects of the sample have negative numbers, below those of all earlier samples.
    lowest = int(db.execute("SELECT MIN(0, COALESCE(MIN(cluster), 0)) FROM verdicts").fetchone()[0])
    ids = (lowest + before.cluster).tolist()
    db.executemany(_JUDGE, zip(ids, before.label.tolist(), before.score.tolist(), strict=True))
    features = ((feature_of(number), one, row.tobytes()) for one, row in zip(ids, before.feature, strict=True))
    db.executemany(_EMBED, features)
    return number


def feature_of(number: int) -> str:
    """Return the name of a network's stored features; with the NUL byte it differs from all embeddings' names."""
    return f"\0{number}"


class StreamWriter:
    """The single writer of a stream's index; raises ConfigError if another process writes it."""

    def __init__(self, store: StreamStore) -> None:
        self.store = store
        self._lock = FileHold(store.folder / "writer", within_s=HELD_ON_S)
        self._crops: BinaryIO = (store.folder / "crops.bin").open(
            "r+b" if (store.folder / "crops.bin").exists() else "w+b"
        )
        self._next = store.clusters()

    def write(self, batch: Gathered, counts: dict[str, float], state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Write results and the ingest's state (arrays of any shape) in one transaction; DataError if the disk
        fails."""
        with told_of_disk(self.store.folder):
            self._crops.seek(self._next * self.store.side**2 * 3)
            for one in batch.begun:
                self._crops.write(one[2].tobytes())
            self._crops.flush()
            os.fsync(self._crops.fileno())  # before the commit, which must not name crops that are not on disk
            with self.store.transaction() as db:
                self._insert(db, batch)
                file = io.BytesIO()
                np.savez(file, allow_pickle=False, **state)
                db.execute("INSERT OR REPLACE INTO progress VALUES (0, ?, ?)", (json.dumps(counts), file.getvalue()))
        self._next += len(batch.begun)

    def _insert(self, db: sqlite3.Connection, batch: Gathered) -> None:
        db.executemany("INSERT INTO clusters (id, network) VALUES (?, ?)", [one[:2] for one in batch.begun])
        db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            [(label, one[0], place, sure) for one in batch.begun for place, (label, sure) in enumerate(one[3])],
        )
        db.executemany(_EMBED, [(feature_of(one[1]), one[0], one[4].tobytes()) for one in batch.begun])
        members = [(*one[:4], json.dumps([int(edge) for edge in one[4]])) for one in batch.members]
        db.executemany("INSERT INTO objects VALUES (?, ?, ?, ?, ?)", members)
        db.executemany("UPDATE clusters SET sealed = 1 WHERE id = ?", [(one,) for one in batch.sealed])

    def close(self) -> None:
        self._crops.close()
        self._lock.close()


class FileHold:
    """A lock file, which the system releases when its process ends; ConfigError if it stays locked for ``within_s``."""

    def __init__(self, path: Path, within_s: float = 0.0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+")
        until_s = time.monotonic() + within_s
        while not self._locked():
            if time.monotonic() >= until_s:
                self._file.close()
                raise ConfigError(f"{path.parent} is in use by another ingest: wait until it ends, or stop it")
            time.sleep(0.05)  # flock has no timeout

    def _locked(self) -> bool:
        try:
            lock(self._file)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._file.close()


@contextmanager
def told_of_disk(folder: Path) -> Iterator[None]:
    """Turn errors of a disk that is full or missing into a DataError."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise DataError(f"cannot write the index {folder}: {error}; earlier commits are kept") from error
