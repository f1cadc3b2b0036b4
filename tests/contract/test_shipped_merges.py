"""Every shipped merge keeps the contract; and the contract sees one that does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import Tensor

from uneven.errors import ConfigError
from uneven.policy.core.actions import Combined, Merge, Payload
from uneven.policy.merge import Kept, Mean, merges
from uneven.testing.merges import MergeContract

SHIPPED = (
    "mean",
    "mean:by_samples=false",
    "add",
    "add:scale=0.25",
    "elastic:alpha=0.3",
    "block-momentum:momentum=0.5",
    "block-momentum:momentum=0.9,learning_rate=0.7,nesterov=true",
    "block-momentum:momentum=0.5,nesterov=true,warmup_samples=20",
)
PROMISES = [name for name in vars(MergeContract) if name.startswith("test_")]


def suite(made: Merge) -> MergeContract:
    class Suite(MergeContract):
        def make(self) -> Merge:
            return made

    return Suite()


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("spec", SHIPPED)
def test_keeps(spec: str, promise: str) -> None:
    getattr(suite(merges.resolve(spec)), promise)()


def test_no_shipped_merge_is_left_out() -> None:
    shipped = {name for name, make in merges.items() if make.__module__.startswith("uneven.")}  # others register theirs
    assert {spec.split(":")[0] for spec in SHIPPED} == shipped
    assert len(PROMISES) == 11


def test_a_merge_is_named_or_given() -> None:
    given = Mean()
    assert merges.resolve(given) is given
    assert merges.resolve("elastic:alpha=0.5") == merges["elastic"](0.5)
    with pytest.raises(ConfigError, match="alpha"):
        merges.resolve("elastic")


@dataclass(frozen=True, slots=True)
class Halfway(Merge):
    """Half of the way from where the replicas last were to their mean; a good one, which the bad ones spoil."""

    def begin(self, start: Tensor) -> Kept:
        return {"at": start}

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        at = kept["at"] + 0.5 * (given - kept["at"])
        return {"at": at}, at


class TestInherited(MergeContract):
    """As an author of a merge uses the suite."""

    def make(self) -> Merge:
        return Halfway()


class _NotCompared(Halfway):
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class _Gradients(Halfway):
    payloads = frozenset({Payload.GRADIENT})


class _NotPlain(Halfway):
    plain = True


class _Longer(Halfway):
    bytes_factor = 0.5


class _ServedOtherwise(Halfway):
    combined = Combined.SUM

    def begin(self, start: Tensor) -> Kept:
        return {"centre": start}

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        centre = kept["centre"] + 2 * given
        return {"centre": centre}, centre

    def served(self, payload: Payload) -> float | None:
        return 1.0


class _Drifts(Halfway):
    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        at = given + 1.0
        return {"at": at}, at


class _Overwrites(Halfway):
    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        at = kept["at"].lerp_(given, 0.5)
        return {"at": at}, at


class _OtherInPlace(Halfway):
    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        at = kept["at"].lerp(given, 0.25 if in_place else 0.5)
        return {"at": at}, at


class _Counts(_ServedOtherwise):
    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        centre = kept["centre"] + given.sign()
        return {"centre": centre}, centre


class _Remembers(Halfway):
    seen: list[Tensor] = []  # noqa: RUF012 - what it is here for

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        at = kept["at"] + (given - kept["at"]) / (1 + len(self.seen))
        self.seen.append(at)
        return {"at": at}, at


class _KeepsMoreLater(Halfway):
    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        return {"at": given, "more": given}, given


@pytest.mark.parametrize(
    ("bad", "promise"),
    [
        (_Gradients, "merges_something"),
        (_NotPlain, "plain"),
        (_Longer, "as_long_as"),
        (_ServedOtherwise, "server_does"),
        (_Drifts, "nothing_moves"),
        (_Overwrites, "may_not_change"),
        (_OtherInPlace, "in_place"),
        (_Counts, "one_by_one"),
        (_Remembers, "in_what_it_keeps"),
        (_KeepsMoreLater, "written_down"),
    ],
)
def test_a_merge_that_breaks_a_promise_is_seen(bad: type[Merge], promise: str) -> None:
    (name,) = (name for name in PROMISES if promise in name)
    with pytest.raises(AssertionError):
        getattr(suite(bad()), name)()


def test_a_merge_that_is_not_compared_by_its_options_is_seen() -> None:
    class Suite(MergeContract):
        def make(self) -> Merge:
            return _NotCompared()

    with pytest.raises(AssertionError):
        Suite().test_two_that_are_made_alike_are_the_same()
