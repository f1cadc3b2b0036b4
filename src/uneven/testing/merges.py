"""Test suite that merges inherit; see :mod:`uneven.testing.contracts`. It needs pytest and torch.

::

    from uneven.testing.merges import MergeContract

    class TestMine(MergeContract):
        def make(self):
            return Mine()
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from uneven.policy.core.actions import Combined, Merge, Payload
from uneven.policy.merge import Kept


class MergeContract(ABC):
    """The tests of every merge."""

    parameters: ClassVar[int] = 12  # of the model
    rounds: ClassVar[int] = 4  # exchanges of a run
    samples: ClassVar[tuple[int, ...]] = (3, 1, 4)  # of each worker between two exchanges

    @abstractmethod
    def make(self) -> Merge:
        """Return a merge, the same each time."""

    def test_two_that_are_made_alike_are_the_same(self) -> None:
        # Plans are compared and printed on all ranks.
        assert self.make() == self.make()
        assert hash(self.make()) == hash(self.make())
        assert repr(self.make()) == repr(self.make())
        assert " at 0x" not in repr(self.make())

    def test_it_merges_something_and_gradients_only_as_they_are(self) -> None:
        merge = self.make()
        assert merge.payloads
        assert merge.payloads <= set(Payload)
        assert Payload.GRADIENT not in merge.payloads or merge.plain or merge.combined is Combined.SUM

    def test_what_is_plain_is_the_mean_of_what_it_is_given(self) -> None:
        merge, (own, *_) = self.make(), self._numbers(1)
        if not merge.plain:
            return
        assert merge.combined is Combined.MEAN
        assert not merge.keeps
        assert merge.contribute(own, {}) is own
        assert merge.combine({}, own, 2.0)[1] is own

    def test_a_contribution_is_as_long_as_the_simulator_believes(self) -> None:
        merge, (start,) = self.make(), self._numbers(1)
        given = self._contributions(merge, self._begin(merge, start), [start])[0]
        assert given.dim() == 1
        assert math.isclose(len(given), merge.bytes_factor * len(start), abs_tol=1.0)

    def test_the_server_does_what_it_says(self) -> None:
        merge, (centre, value) = self.make(), self._numbers(2)
        kept = self._begin(merge, centre)
        # Otherwise a real parameter server would train another model than the simulated one.
        factor = merge.served(Payload.DELTA)
        if factor is not None:
            assert merge.combined is Combined.SUM
            torch.testing.assert_close(merge.combine(kept, value, 1.0)[1], centre + factor * value)
        step = merge.served_step()
        if step is not None:
            (momentum, rate), velocity = step, torch.zeros_like(centre)
            for given in (value, centre):
                velocity = momentum * velocity + given
                kept, outcome = merge.combine(kept, given, 1.0)
                torch.testing.assert_close(outcome, rate * (given + momentum * velocity))
        factor = merge.served(Payload.PARAMETERS)
        if factor is not None:
            assert merge.combined is Combined.CENTRE
            given = merge.contribute(value, kept)
            torch.testing.assert_close(given, factor * (value - centre))
            torch.testing.assert_close(merge.combine(kept, given, 1.0)[1], centre + given)

    def test_where_nobody_has_moved_nothing_moves(self) -> None:
        merge, (start,) = self.make(), self._numbers(1)
        outcome = self._exchange(merge, self._begin(merge, start), [start.clone() for _ in self.samples], start)[1]
        torch.testing.assert_close(outcome, start)

    def test_it_leaves_alone_what_it_may_not_change(self) -> None:
        merge, (start, own, given) = self.make(), self._numbers(3)
        kept = self._begin(merge, start)
        before = self._copy(kept), own.clone(), given.clone()
        given = given[: len(merge.contribute(own, kept if merge.combined is not Combined.SUM else {}))]
        merge.combine(kept, given, 8.0)
        merge.combine(kept, given, 2.0)
        assert torch.equal(own, before[1])
        assert torch.equal(given, before[2][: len(given)])
        assert self._same(kept, before[0])

    def test_in_place_comes_to_the_same(self) -> None:
        merge, (start, *moves) = self.make(), self._numbers(1 + self.rounds * len(self.samples))
        there, here = self._begin(merge, start), self._copy(self._begin(merge, start))
        for at in range(self.rounds):
            values = [start + move for move in moves[at :: self.rounds]]
            there, outcome = self._exchange(merge, there, values, start)
            here, same = self._exchange(merge, here, values, start, in_place=True)
            torch.testing.assert_close(same, outcome)

    def test_sums_come_to_the_same_one_by_one_and_all_at_once(self) -> None:
        merge, (start, *values) = self.make(), self._numbers(4)
        if merge.combined is Combined.MEAN:
            return
        kept = self._begin(merge, start)
        given = self._contributions(merge, kept, values)
        once, (apart, centre) = merge.combine(kept, torch.stack(given).sum(0), 1.0)[1], (kept, start)
        for one in given:
            apart, centre = merge.combine(apart, one, 1.0)
        torch.testing.assert_close(centre, once)

    def test_all_that_changes_is_in_what_it_keeps(self) -> None:
        merge, (start, *values) = self.make(), self._numbers(1 + 2 * self.rounds)
        # One object serves all workers and the server, and a new one continues from the state of another.
        here, there = self._begin(merge, start), self._begin(self.make(), start)
        for value, other in zip(values[::2], values[1::2], strict=True):
            here, outcome = self._exchange(merge, here, [value, other], start)
            self._exchange(merge, self._begin(merge, other), [value], other)
            there, same = self._exchange(self.make(), self._copy(there), [value, other], start)
            assert torch.equal(outcome, same)

    def test_what_it_keeps_can_be_written_down(self) -> None:
        merge, (start, value) = self.make(), self._numbers(2)
        begun = self._begin(merge, start)
        kept, outcome = self._exchange(merge, begun, [value], start)
        assert bool(begun) <= merge.keeps
        assert set(begun) == set(kept), "an initial checkpoint has the same names"
        for name, one in kept.items():
            vector = isinstance(one, Tensor)
            assert one.shape == start.shape if vector else 0 <= one < math.inf, name
        central = merge.combined is not Combined.MEAN
        assert ("centre" in kept) == central
        assert not central or torch.equal(kept["centre"], outcome)
        assert outcome.shape == start.shape

    def _begin(self, merge: Merge, start: Tensor) -> Kept:
        return merge.begin(start.clone())

    def _contributions(self, merge: Merge, kept: Kept, values: list[Tensor]) -> list[Tensor]:
        return [merge.contribute(one, kept if merge.combined is not Combined.SUM else {}) for one in values]

    def _exchange(
        self, merge: Merge, kept: Kept, values: list[Tensor], start: Tensor, *, in_place: bool = False
    ) -> tuple[Kept, Tensor]:
        """Merge ``values`` (flat, of one length) once; as differences from ``start`` if the merge adds updates."""
        if merge.combined is Combined.SUM:
            values = [one - start for one in values]
        given = torch.stack(self._contributions(merge, kept, values))
        if merge.combined is not Combined.MEAN:
            return merge.combine(kept, given.sum(0), float(len(values)), in_place=in_place)
        weights = torch.tensor([merge.weight(samples) for samples in self.samples[: len(values)]], dtype=given.dtype)
        mean = (weights / weights.sum()) @ given
        return merge.combine(kept, mean, float(weights.sum()), in_place=in_place)

    def _numbers(self, count: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(7)
        return tuple(torch.randn(self.parameters, dtype=torch.float64, generator=generator) for _ in range(count))

    @staticmethod
    def _copy(kept: Kept) -> Kept:
        return {name: one.clone() if isinstance(one, Tensor) else one for name, one in kept.items()}

    @staticmethod
    def _same(one: Kept, other: Kept) -> bool:
        return set(one) == set(other) and all(
            torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])) for name, value in one.items()
        )
