"""The new replica against the old one: the same bits in, the same bits out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from old_peers.delayed import DelayedOutcomes, LatePiece
from old_peers.replica import Replica as OldReplica
from uneven.policy.core.actions import (
    Background,
    BlockMomentum,
    Elastic,
    Exchange,
    Mean,
    Merge,
    Moment,
    Payload,
)  # fmt: skip
from uneven.policy.merge import Kept
from uneven.policy.merge.movement import OuterMovement
from uneven.run.replicas.peers.background_thread import BackgroundThread
from uneven.run.replicas.peers.replica import Replica


@dataclass(frozen=True, slots=True)
class Sketch(Merge):
    by_samples = False
    bytes_factor = 0.5

    def begin(self, start: Tensor) -> Kept:
        return {"start": start, "turns": 0.0}

    def contribute(self, own: Tensor, kept: Kept, *, in_place: bool = False) -> Tensor:
        moved = own - kept["start"]
        return moved[: len(moved) // 2 * 2].view(-1, 2).mean(1)

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        start = kept["start"].clone()
        start[: 2 * len(given)] += given.repeat_interleave(2)
        return {"start": start, "turns": kept["turns"] + weight}, start


@dataclass(frozen=True, slots=True)
class Sign(Merge):
    def begin(self, start: Tensor) -> Kept:
        return {"start": start}

    def contribute(self, own: Tensor, kept: Kept, *, in_place: bool = False) -> Tensor:
        return (own - kept["start"]).sign()

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        start = kept["start"] + 0.01 * given
        return {"start": start}, start


MERGES: tuple[Merge, ...] = (
    Mean(),
    Mean(by_samples=False),
    Elastic(0.3),
    BlockMomentum(0.5),
    BlockMomentum(0.9, 0.7, nesterov=True),
    BlockMomentum(0.5, nesterov=True, warmup_samples=20),
    Sketch(),
    Sign(),
)
BACKS = (Background(), Background(alpha=0.5), Background(alpha=0.3, lerp=True))


def model(kind: str) -> nn.Module:
    torch.manual_seed(1)
    made: nn.Module = nn.Linear(5, 3)
    if kind != "plain":
        made = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    return made.double() if kind == "double" else made.bfloat16() if kind == "narrow" else made


class Twin:
    """An old and a new replica of the same model, with the same history."""

    def __init__(self, kind: str, seed: int, merged: bool, announce: dict[str, Any], delays: bool = False) -> None:
        self.kind, self.announce, self.delays = kind, announce, delays
        self.models = model(kind), model(kind)
        self.old, self.new = OldReplica(self.models[0]), Replica(self.models[1])
        self.old.expect(**announce)
        self.new.expect(**announce, delays=delays)
        for one in (self.old, self.new):
            if merged:
                one.keep_merged()
        self.late = DelayedOutcomes(self.old)
        self.thread = BackgroundThread()
        self.draw = random.Random(seed)
        self.states()
        for one in (self.old, self.new):
            one.begin()
        self.same()

    def learn(self, scale: float = 0.1) -> None:
        seed = self.draw.randrange(1 << 30)
        for one in (self.old, self.new):
            noise = torch.Generator().manual_seed(seed)
            drawn = torch.randn(one.flat.size, generator=noise, dtype=one.flat.dtype)
            one.flat.add(drawn, scale)

    def total(self, seed: int, which: Any, learns: bool, spoilt: bool, mark: bool = False) -> Callable[..., int]:
        def total(vector: Tensor, exchange: Exchange | None = None) -> int:
            noise = torch.Generator().manual_seed(seed)
            others = torch.randn(len(vector), generator=noise, dtype=vector.dtype)
            others[-2:] = torch.tensor([seed % 7, seed % 2])
            others[:-2] *= seed % 7
            if spoilt:
                others[0] = float("nan")
            if exchange is None or len(exchange.members) > 1:
                vector += others
            if learns:
                which.flat.add(torch.randn(which.flat.size, generator=noise, dtype=vector.dtype), 0.05)
            return len(vector)

        return total

    def meet(self, exchange: Exchange, samples: float, spoilt: bool = False, **how: Any) -> None:
        seed, learns = self.draw.randrange(1 << 30), exchange.moment is Moment.BACKGROUND
        own = [one.flat.read() if how.get("own") else None for one in (self.old, self.new)]
        if how.pop("own", None):
            self.learn()
        found = [
            one.meet(exchange, samples, self.total(seed, one, learns, spoilt), own=own[place], **how)
            for place, one in enumerate((self.old, self.new))
        ]
        self.facts(*found, rests=exchange.piece is None and exchange.payload is not Payload.DELTA)
        self.same()

    def facts(self, old: Any, new: Any, rests: bool = False) -> None:
        names = ("sent_bytes", "distance", "finite", "picked", *(("resting",) if rests else ()))
        found = [{name: repr(getattr(one, name)) for name in names} for one in (old, new)]
        assert found[0] == found[1]

    def delayed(self, exchange: Exchange, samples: float, clock: int) -> None:
        seed = self.draw.randrange(1 << 30)
        old: list[Any] = []
        self.late.check_free(exchange, clock)
        self.new.check_free(exchange, clock)
        total = self.total(seed, self.old, False, False)
        self.late.begin(
            LatePiece(
                self.old, exchange, samples, lambda vector: total(vector, exchange), lambda met, _: old.append(met)
            ),
            clock + exchange.delay,
        )
        given = self.new.give(exchange, samples)
        self.thread.launch(lambda: total(given.vector, exchange))
        self.new.due = clock + exchange.delay

        def land(sent_bytes: int) -> None:
            met = self.new.combine(exchange, given, sent_bytes)
            self.new.land(exchange, given, met)
            self.facts(old[0], met)

        self.thread.hold(self.thread.wait, land)

    def arrive(self) -> None:
        self.late.arrive()
        self.thread.arrive()

    def enter(self, clock: int) -> None:
        assert self.late.due(clock) == (self.new.due is not None and clock >= self.new.due)
        if self.late.due(clock):
            self.late.enter()
            self.thread.arrive()
            self.new.enter()
        self.same()

    def states(self) -> list[tuple[dict[str, Tensor], dict[str, float]]]:
        vectors, numbers = self.old.state_dict()
        if self.delays:
            self.arrive()
            change, due = self.late.state(False)
            vectors, numbers = self.old.state_dict()
            vectors, numbers = vectors | change, numbers | due
        return [(vectors, numbers), self.new.state_dict()]

    def same(self) -> None:
        old, new = self.old.flat.read(), self.new.flat.read()
        assert torch.equal(old.nan_to_num(7.0), new.nan_to_num(7.0))
        assert torch.equal(old.isnan(), new.isnan())
        (vectors, numbers), (others, counted) = self.states() if not self.delays else ((0, 0), (0, 0))
        if not self.delays:
            self.equal(vectors, others)
            assert {key: repr(one) for key, one in numbers.items()} == {key: repr(one) for key, one in counted.items()}
        if self.old.merged is not None:
            assert self.new.merged is not None
            assert torch.equal(self.old.merged.nan_to_num(7.0), self.new.merged.nan_to_num(7.0))
        if self.announce["centre"]:
            assert torch.equal(self.old.centre.nan_to_num(7.0), self.new.centre.nan_to_num(7.0))

    @staticmethod
    def equal(one: Any, other: Any) -> None:
        assert set(one) == set(other)
        for key, vector in one.items():
            assert vector.dtype == other[key].dtype
            assert torch.equal(vector.nan_to_num(7.0), other[key].nan_to_num(7.0)), key

    def again(self) -> None:
        """Continue from a checkpoint."""
        (vectors, numbers), (others, counted) = self.states()
        self.equal(vectors, others)
        assert numbers == counted
        self.old, self.new = OldReplica(self.models[0]), Replica(self.models[1])
        self.old.expect(**self.announce)
        self.new.expect(**self.announce, delays=self.delays)
        self.new.check(others, counted)
        own = {key: one for key, one in (vectors | numbers).items() if key.startswith("late-")}
        self.old.load_state_dict(*({k: v for k, v in one.items() if k not in own} for one in (vectors, numbers)))
        self.new.load_state_dict(others, counted)
        self.thread.close()
        self.late, self.thread = DelayedOutcomes(self.old), BackgroundThread()
        self.late.load(own)
        for one in (self.old, self.new):
            one.begin()
        self.same()


KINDS = ("plain", "normed", "double", "narrow")


@pytest.mark.parametrize("merge", MERGES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("centre", [False, True])
def test_whole_replicas(merge: Merge, kind: str, centre: bool) -> None:
    for merged, moment, members in itertools.product((False, True), (Moment.STEP, Moment.BACKGROUND), ((0, 1), (0,))):
        for back in BACKS if moment is Moment.BACKGROUND else BACKS[:1]:
            twin = Twin(kind, 3, merged, {"merges": [merge], "centre": centre})
            exchange = Exchange(
                payload=Payload.PARAMETERS, members=members, merge=merge, moment=moment, background=back
            )
            for turn in range(5):
                twin.learn()
                twin.meet(exchange, (8, 0, 3)[turn % 3], resting=turn == 4)
                twin.meet(exchange, 5, alone=False, own=turn % 2 == 0)
                if turn == 2:
                    twin.again()
            twin.meet(exchange, 5, spoilt=True)
            twin.learn()
            twin.meet(exchange, 5)
            for one in twin.models:
                next(one.parameters()).data[0] = float("nan")
            twin.meet(exchange, 5)


@pytest.mark.parametrize("merge", MERGES[:2] + MERGES[3:], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("pieces", [1, 3])
def test_pieces(merge: Merge, kind: str, centre: bool, delay: int, pieces: int) -> None:
    for members in ((0, 1), (0,)):
        twin = Twin(kind, 5, False, {"merges": [merge], "centre": centre, "cuts": [pieces]}, delays=delay > 0)
        for clock in range(3, 40):
            twin.learn()
            if delay:
                twin.enter(clock)
            if clock % 4 == 0:
                one = Exchange(
                    payload=Payload.PARAMETERS, members=members, merge=merge, moment=Moment.STEP,
                    piece=(clock // 4 % pieces, pieces), delay=delay,
                )  # fmt: skip
                if delay:
                    twin.delayed(one, clock % 5, clock)
                else:
                    twin.meet(one, clock % 5)
            if clock in (13, 22):
                twin.again()
        twin.thread.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("moved", [OuterMovement(), OuterMovement(0.5, 1.0), Mean(), Mean(by_samples=False)], ids=repr)
@pytest.mark.parametrize("far", MERGES, ids=repr)
def test_movements(kind: str, centre: bool, moved: Merge, far: Merge) -> None:
    for members in ((0, 1), (0,)):
        twin = Twin(kind, 7, False, {"merges": [far], "centre": centre, "moved": [moved]})
        near = Exchange(payload=Payload.DELTA, members=members, merge=moved, moment=Moment.STEP)
        wide = Exchange(payload=Payload.PARAMETERS, members=(0, 1, 2), merge=far, moment=Moment.STEP)
        for turn in range(8):
            twin.learn()
            twin.meet(near if turn % 3 else wide, turn % 4)
            if turn == 4:
                twin.again()
        twin.meet(near, 3, spoilt=True)
        twin.meet(wide, 3)


def test_a_group_with_several_merges() -> None:
    for kind, back in itertools.product(KINDS, BACKS):
        twin = Twin(kind, 11, True, {"merges": [Mean(), BlockMomentum(0.5)], "centre": True})
        base = Exchange(
            payload=Payload.PARAMETERS, members=(0, 1), merge=Mean(), moment=Moment.BACKGROUND, background=back
        )
        for turn in range(9):
            twin.learn()
            merge = Mean() if turn % 2 else BlockMomentum(0.5)
            moment = Moment.BACKGROUND if turn % 3 else Moment.STEP
            twin.meet(replace(base, merge=merge, moment=moment), turn)
