"""A worker's end of the table servers: ask for a batch's numbers, give its gradient.

Every request returns at once; only asking for the outcome waits. Any thread may ask and give: a thread of the line
carries the messages, gives signs of life, and brings a shard that has been started again up to date.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from uneven.embedding.growing import Ids64
from uneven.embedding.holding import ShardSpec
from uneven.embedding.link import TableLink
from uneven.embedding.route import Routed
from uneven.embedding.rows import Bags, Floats, Ids, Kernels
from uneven.embedding.wire import Say, TableMessage
from uneven.errors import CheckpointError, ConfigError, PeerError
from uneven.server.line import ShardLine


class TableClient:
    """See the module.

    Args:
        rank: this worker.
        shards: what each of them holds.
        line: to them; the client closes it.
        kernels: for numbers of half the width.
        timeout_s: how long an outcome is waited for.
        halves: whether pooled rows and gradients travel as bfloat16.

    Raises:
        ConfigError: the line leads to another number of shards.
    """

    def __init__(
        self,
        rank: int,
        shards: Sequence[ShardSpec],
        line: ShardLine,
        kernels: Kernels,
        *,
        timeout_s: float = 300.0,
        halves: bool = False,
    ) -> None:
        if line.shards != len(shards):
            line.close()
            raise ConfigError(f"the tables are placed on {len(shards)} shards, the line leads to {line.shards}")
        self.rank = rank
        self.timeout_s = timeout_s
        self.halves = halves
        self.kernels = kernels
        self.line = line
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._links = {
            shard: TableLink(rank, spec.text, spec.fingerprint) for shard, spec in enumerate(shards) if spec.groups
        }
        self._answers: dict[tuple[int, int], TableMessage | None] = {}
        self._meetings = 0
        line.open(self)

    def ask(self, routed: Routed, *, learning: bool = True) -> AskedRows:
        """Ask for a batch's numbers; ``learning``: for a step, so that its ids have been seen once more."""
        kind = Say.LOOKUP if learning else Say.READ
        with self._changed:
            numbers = {
                shard: self._request(shard, kind, routed.bags(shard), halves=self.halves) for shard in routed.blocks
            }
        return AskedRows(self, routed, numbers)

    def give(self, asked: AskedRows, gradient: Floats) -> None:
        """Give the gradient of a batch's numbers, shape (batch, width); its rows step as soon as it arrives."""
        routed, gradient = asked.routed, asked.routed.divided(gradient)
        for shard, blocks in routed.blocks.items():
            values: list[Any] = list(routed.gradients(shard, gradient))
            if self.halves:
                values = [self.kernels.halved(one) for one in values]
            bags = tuple(replace(block.bags, values=one) for block, one in zip(blocks, values, strict=True))
            self._post(shard, Say.GRADIENT, bags, asked.versions[shard])

    def write(self, shard: int, bags: Bags) -> None:
        """Set rows, and their Adagrad sums to the weights; without weights the sums begin again."""
        self._post(shard, Say.WRITE, (bags,), 0)

    def rows(self, shard: int, bags: Bags, kind: Say = Say.READ) -> Floats:
        """Rows as they are, shape (bags, width); with ``Say.SUMS`` their Adagrad sums, shape (bags, 1)."""
        with self._changed:
            numbers = {shard: self._request(shard, kind, (bags,))}
        values = self.outcome(numbers, "a lookup")[shard].bags[0].values
        assert values is not None
        return values

    def names(self, shard: int, group: int) -> tuple[Ids64, Ids]:
        """The ids that have rows in a group that grows, and where these are."""
        with self._changed:
            numbers = {shard: self._request(shard, Say.NAMES, text=str(group))}
        ids, slots = self.outcome(numbers, "a question for ids")[shard].bags
        assert ids.ids is not None
        assert slots.ids is not None
        return ids.ids.astype(np.int64), slots.ids.astype(np.int32)

    def flush(self) -> None:
        """Wait until all that every worker gave before it came here is in the rows; all who are there have to come.

        Raises:
            PeerError: somebody, or a shard, did not.
        """
        with self._changed:
            self._meetings += 1
            numbers = {shard: self._request(shard, Say.FLUSH, meeting=self._meetings) for shard in self._links}
        self.outcome(numbers, "a flush of all workers")

    def do(self, kind: Say, text: str) -> None:
        """Let all shards save or load.

        Raises:
            CheckpointError: one cannot, with its reason.
        """
        with self._changed:
            numbers = {shard: self._request(shard, kind, text=text) for shard in self._links}
        for shard, answer in self.outcome(numbers, f"{kind.name.lower()} {text}").items():
            if answer.text:
                raise CheckpointError(f"shard {shard} of the tables cannot {kind.name.lower()} {text}: {answer.text}")

    def stats(self) -> TableStats:
        """What has happened on the shards so far.

        Raises:
            PeerError: one does not answer.
        """
        found = self._told().values()
        counts: Counter[str] = Counter()
        staleness: Counter[int] = Counter()
        for one in found:
            counts.update(one["counts"])
            staleness.update({int(key): many for key, many in one["staleness"].items()})
        return TableStats(counts, staleness, self.lost, self.restarts)

    def speeds(self) -> list[float]:
        """Numbers of rows a microsecond of each shard; those that have not worked are as fast as the others."""
        counts = [one["counts"] for one in self._told().values()]
        found = [one.get("numbers", 0) / max(one.get("busy_us", 0), 1) for one in counts]
        there = [one for one in found if one > 0] or [1.0]
        return [one or sum(there) / len(there) for one in found]

    def _told(self) -> dict[int, Any]:
        with self._changed:
            numbers = {shard: self._request(shard, Say.STATS) for shard in self._links}
        answers = self.outcome(numbers, "a question for counts")
        return {shard: json.loads(answers[shard].text) for shard in sorted(answers)}

    @property
    def lost(self) -> int:
        """Updates of this worker that a shard had taken in and does not hold any more."""
        return sum(link.lost for link in self._links.values())

    @property
    def restarts(self) -> int:
        """How often a shard was found to have been started again."""
        return sum(link.restarts for link in self._links.values())

    def leave(self) -> None:
        """The others no longer wait for this worker, until it asks for something again."""
        with self._changed:
            for shard, link in self._links.items():
                if link.life:
                    self.line.post(shard, [link.leave()])

    def close(self) -> None:
        """End. Twice is fine."""
        self.leave()
        self.line.close()

    # ---------------------------------------------------------------- for the line
    def received(self, shard: int, message: TableMessage) -> None:
        with self._changed:
            if shard not in self._links:
                return
            out, answers = self._links[shard].receive(message)
            self.line.post(shard, out)
            for number, answer in answers:
                if (shard, number) in self._answers:
                    self._answers[shard, number] = answer
            if answers:
                self._changed.notify_all()

    def beat(self, shard: int) -> None:
        with self._changed:
            if shard in self._links:
                self.line.post(shard, [self._links[shard].beat()])

    def broken(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # ---------------------------------------------------------------- for those who ask
    def outcome(self, numbers: dict[int, int], what: str) -> dict[int, TableMessage]:
        """Wait for all shards' answers.

        Raises:
            PeerError: one does not answer, or refuses what was asked.
        """
        keys = list(numbers.items())
        with self._changed:
            self._wait(lambda: all(self._answers[key] is not None for key in keys), keys, what)
            found = {key[0]: self._answers.pop(key) for key in keys}
        for shard, answer in found.items():
            assert answer is not None
            if answer.kind is Say.REFUSED:
                raise PeerError(
                    f"rank {self.rank}: shard {shard} of the tables at {self.line.where(shard)} refuses {what} "
                    f"({answer.text}): do all workers have the same tables, and the same version of uneven?"
                )
        return {shard: answer for shard, answer in found.items() if answer is not None}

    def _wait(self, done: Callable[[], bool], keys: list[tuple[int, int]], what: str) -> None:
        if not self._changed.wait_for(lambda: done() or self._error is not None, self.timeout_s):
            missing = [shard for shard, number in keys if self._answers.get((shard, number)) is None]
            names = ", ".join(f"shard {shard} ({self.line.where(shard)})" for shard in missing)
            self.drop(dict(keys))
            raise PeerError(
                f"rank {self.rank}: no answer to {what} within {self.timeout_s:g} s from {names} of the tables"
            )
        if self._error is not None and not done():
            raise PeerError(f"rank {self.rank}: the line to the tables has ended: {self._error}") from self._error

    def drop(self, numbers: dict[int, int]) -> None:
        """Nobody waits for these answers any more."""
        with self._changed:
            for shard, number in numbers.items():
                self._answers.pop((shard, number), None)
                self._links[shard].forget(number)

    def _request(self, shard: int, kind: Say, bags: tuple[Bags, ...] = (), **more: Any) -> int:
        number, out = self._links[shard].request(kind, bags, **more)
        self._answers[shard, number] = None
        self.line.post(shard, out)
        return number

    def _post(self, shard: int, kind: Say, bags: tuple[Bags, ...], version: int) -> None:
        with self._changed:
            if self._error is not None:
                raise PeerError(f"rank {self.rank}: the line to the tables has ended: {self._error}") from self._error
            self.line.post(shard, self._links[shard].change(kind, bags, version))


class AskedRows:
    """A batch's numbers, on their way.

    Attributes:
        versions: of the rows on each shard when they were looked up.
    """

    def __init__(self, client: TableClient, routed: Routed, numbers: dict[int, int]) -> None:
        self.routed = routed
        self.versions: dict[int, int] = {}
        self._client, self._numbers = client, numbers

    @property
    def many(self) -> list[int]:
        """Ids of each feature."""
        return self.routed.many

    def values(self) -> Floats:
        """Wait for them; shape (batch, width). Once.

        Raises:
            PeerError: a shard does not answer.
        """
        answers = self._client.outcome(self._numbers, "a lookup")
        self.versions = {shard: answer.version for shard, answer in answers.items()}
        rows = {shard: [self._floats(one) for one in answer.bags] for shard, answer in answers.items()}
        return self.routed.pooled(rows)

    def _floats(self, bags: Bags) -> Floats:
        assert bags.values is not None  # of an answer, as the wire has seen
        return self._client.kernels.whole(bags.values) if self._client.halves else bags.values

    def drop(self) -> None:
        """Nobody wants them any more."""
        self._client.drop(self._numbers)


@dataclass(frozen=True, slots=True)
class TableStats:
    """What has happened on all shards, and to this worker's updates.

    Attributes:
        counts: see :class:`uneven.embedding.shard.TableShard`.
        staleness: updates between a lookup and its gradient → how often.
        lost, restarts: see :class:`TableClient`.
        sharing: of tables that take ids modulo their rows: how many ids share one, on average.
    """

    counts: Counter[str]
    staleness: Counter[int]
    lost: int
    restarts: int
    sharing: dict[str, float] = field(default_factory=dict)

    def stale(self, part: float) -> float:
        """The staleness that so many of the lookups do not exceed, 0 … 1; NaN where there were none."""
        total, seen = sum(self.staleness.values()), 0
        for value, many in sorted(self.staleness.items()):
            seen += many
            if seen >= part * total:
                return value
        return float("nan")
