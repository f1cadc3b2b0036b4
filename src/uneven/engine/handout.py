"""The counters from which workers take their samples, and what they tell each other beside the shared copy.

They lie in the store that the ranks met at, which the launcher keeps (or rank 0 where there is none). Adding to a
number there is one question and one answer. A shard that is started again so has nothing of this to lose.
"""

from __future__ import annotations

import json
from typing import Any

from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from uneven.data.paced import Interval, PacedSampler
from uneven.errors import PeerError


class StoredHandOut:
    """See :class:`uneven.data.paced.HandOut`.

    Args:
        rank, size: this worker, and how many there are; with one, the store is in this process.

    Attributes:
        sampler: of this worker's loader, once there is one.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sampler: PacedSampler | None = None
        self._lives = 0  # states loaded so far, alike on every worker
        self._told: tuple[int, int, list[Interval]] | None = None  # epoch, counter, and what is undone of it
        store: c10d.Store = c10d._get_default_store() if size > 1 else HashStore()
        number = store.add(f"uneven/hand-outs/{rank}", 1)  # tells apart the sessions that use one store
        self._store = c10d.PrefixStore(f"uneven/hand-out/{number}", store)

    def take(self, epoch: int, samples: int) -> int:
        """Move the counter of an epoch on by so many; where it was before.

        Raises:
            PeerError: the store does not answer.
        """
        return self._add(epoch, samples) - samples

    def anew(self) -> None:
        """Count from 0 again; every worker says so, after it has loaded a state."""
        self._lives += 1

    def told(self, epoch: int, own: list[Interval]) -> tuple[int, list[Interval]]:
        """As of the meeting that all workers are in; outside of one, the counter as it is and what is known here."""
        if self._told is not None and self._told[0] == epoch:
            return self._told[1], self._told[2]
        return self._add(epoch, 0), own

    def come(self, meeting: int, epoch: int) -> None:
        """Before a meeting, at which this worker takes nothing more until it has parted: leave word for the others.

        Args:
            epoch: that this worker is in.

        Raises:
            PeerError: the store does not answer.
        """
        undone = self.sampler.undone() if self.sampler is not None else []
        word = {"meeting": meeting, "epoch": epoch, "counter": self._add(epoch, 0), "undone": undone}
        self._ask(lambda: self._store.set(f"word/{self.rank}", json.dumps(word)))

    def meet(self, meeting: int) -> list[int]:
        """At the meeting: read the words of all. The last counter that anybody has read is that of now.

        Returns:
            Ranks that have left none: they are gone.

        Raises:
            PeerError: the store does not answer.
        """
        words = {rank: word for rank in range(self.size) if (word := self._word(rank))["meeting"] == meeting}
        epoch = words[self.rank]["epoch"]
        same = [word for word in words.values() if word["epoch"] == epoch]
        undone = [(first, last) for word in same for first, last in word["undone"]]
        self._told = epoch, max(word["counter"] for word in same), undone
        return [rank for rank in range(self.size) if rank not in words]

    def part(self) -> None:
        """The meeting is over; others go on to take."""
        self._told = None

    def close(self) -> None:
        """This worker needs nothing more of anybody.

        Raises:
            PeerError: the store does not answer.
        """
        self._ask(lambda: self._store.set(f"closed/{self.rank}", ""))

    def closed(self, rank: int) -> bool:
        """Whether a worker has said so.

        Raises:
            PeerError: the store does not answer.
        """
        return bool(self._ask(lambda: self._store.check([f"closed/{rank}"])))

    def _word(self, rank: int) -> dict[str, Any]:
        key = f"word/{rank}"
        if not self._ask(lambda: self._store.check([key])):
            return {"meeting": 0}
        word: dict[str, Any] = json.loads(self._ask(lambda: self._store.get(key)))
        return word

    def _add(self, epoch: int, samples: int) -> int:
        return int(self._ask(lambda: self._store.add(f"taken/{self._lives}/{epoch}", samples)))

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.rank}: the store that the ranks met at, which hands out the samples, does not answer: the "
                f"process that keeps it (the launcher, or rank 0 without one) has ended "
                f"({str(error).strip().splitlines()[0]})"
            ) from error
