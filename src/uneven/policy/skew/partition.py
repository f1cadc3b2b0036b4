"""Partitions of samples over sites; every sample is at exactly one site.

The names are those of flwr's partitioners without "Partitioner"; ``label`` is the skew of Hsieh et al. (2020): x % of
the samples are assigned by label.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.policy.core.registry import Registry

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = tuple[npt.NDArray[np.int64], ...]
"""The sample numbers of each site, ascending."""


class Partition(ABC):
    """A way to assign samples to sites; a frozen dataclass."""

    __slots__ = ()

    def split(self, keys: Array, sites: int, seed: int = 0) -> Numbers:
        """Return the sample numbers of each site, int64 (n,) each, ascending.

        Args:
            keys: label, or another integer key from 0, of each sample; shape (samples,).
            sites: number of sites.
            seed: the result is reproducible.

        Raises:
            ConfigError: there are fewer samples than sites, or a site would be empty.
        """
        if not 1 <= sites <= len(keys):
            raise ConfigError(f"{len(keys)} samples for {sites} sites: give at least one per site")
        homes = self.homes(np.asarray(keys), sites, np.random.default_rng(seed))
        found = tuple(np.flatnonzero(homes == site).astype(np.int64) for site in range(sites))
        empty = [site for site, numbers in enumerate(found) if not len(numbers)]
        if empty:
            raise ConfigError(f"{self!r}: site {empty[0]} of {sites} would have no samples: use fewer sites")
        return found

    @abstractmethod
    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        """Return the site of each sample, 0 to sites − 1; shape (samples,)."""


@dataclass(frozen=True, slots=True)
class Iid(Partition):
    """Assign sample i to site i modulo the number of sites: no skew."""

    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        return np.arange(len(keys)) % sites


@dataclass(frozen=True, slots=True)
class Label(Partition):
    """Assign a random ``percent`` % of the samples to site label modulo sites, and the others evenly."""

    percent: float = 100.0

    def __post_init__(self) -> None:
        if not 0 <= self.percent <= 100:
            raise ConfigError(f"label: percent = {self.percent!r}: give 0 to 100, the part that is split by label")

    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        order = rng.permutation(len(keys))
        skewed = round(len(keys) * self.percent / 100)
        homes = np.empty(len(keys), dtype=np.int64)
        homes[order[:skewed]] = keys[order[:skewed]] % sites
        homes[order[skewed:]] = np.arange(len(keys) - skewed) % sites
        return homes


@dataclass(frozen=True, slots=True)
class Dirichlet(Partition):
    """Draw the parts of each label from a Dirichlet distribution; a smaller ``alpha``, above 0, means more skew."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1e9:
            raise ConfigError(f"dirichlet: alpha = {self.alpha!r} must be above 0")

    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        homes = np.empty(len(keys), dtype=np.int64)
        for key in np.unique(keys):
            own = rng.permutation(np.flatnonzero(keys == key))
            ends = np.cumsum(rng.dirichlet(np.full(sites, self.alpha)))
            # Deterministic rounding of the parts: midpoints of n intervals.
            homes[own] = np.searchsorted(ends, (np.arange(len(own)) + 0.5) / len(own)).clip(0, sites - 1)
        return homes


@dataclass(frozen=True, slots=True)
class Pathological(Partition):
    """Give each site ``classes`` of the labels, in turn; sites with the same label share it evenly."""

    classes: int = 2

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise ConfigError(f"pathological: classes = {self.classes!r}: give at least one label per site")

    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        labels = np.unique(keys)
        if sites * self.classes < len(labels):  # a label would be at no site
            raise ConfigError(
                f"pathological: {sites} sites of {self.classes} labels hold at most {sites * self.classes} of the "
                f"{len(labels)} labels: raise classes"
            )
        homes = np.empty(len(keys), dtype=np.int64)
        slots = np.arange(sites * self.classes)
        for place, label in enumerate(labels):
            holders = np.unique(slots[slots % len(labels) == place] // self.classes)
            own = rng.permutation(np.flatnonzero(keys == label))
            homes[own] = holders[np.arange(len(own)) % len(holders)]
        return homes


@dataclass(frozen=True, slots=True)
class NaturalId(Partition):
    """Assign all samples of a natural key, such as a writer or a country, to one site, keys in turn."""

    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        return np.unique(keys, return_inverse=True)[1] % sites


@dataclass(frozen=True, slots=True)
class Sized(Partition):
    """Make sites of unequal sizes with the same labels: the k-th is proportional to k ("linear"), k² or eᵏ."""

    form: str = "linear"

    def __post_init__(self) -> None:
        if self.form not in _FORMS:
            raise ConfigError(f"sizes of the form {self.form!r}: use one of: {', '.join(_FORMS)}")

    def homes(self, keys: Array, sites: int, rng: np.random.Generator) -> Array:
        weights = _FORMS[self.form](np.arange(1, sites + 1, dtype=float))
        ends = np.cumsum(weights / weights.sum())
        homes = np.searchsorted(ends, (np.arange(len(keys)) + 0.5) / len(keys)).clip(0, sites - 1)
        return np.asarray(rng.permutation(homes))


_FORMS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda k: k,
    "square": np.square,
    "exponential": lambda k: np.exp(k - k[-1]),  # shifted, so that it does not overflow
}


def _linear() -> Sized:
    """Make sites of sizes 1, 2, 3 …, with the same labels."""
    return Sized("linear")


def _square() -> Sized:
    """Make sites of sizes 1, 4, 9 …, with the same labels."""
    return Sized("square")


def _exponential() -> Sized:
    """Make sites of sizes 1, e, e² …, with the same labels."""
    return Sized("exponential")


partitions: Registry[Partition] = Registry("partition", Partition)  # type: ignore[type-abstract]

partitions.register("iid", Iid)
partitions.register("label", Label)
partitions.register("dirichlet", Dirichlet)
partitions.register("pathological", Pathological)
partitions.register("natural-id", NaturalId)
partitions.register("linear", _linear)
partitions.register("square", _square)
partitions.register("exponential", _exponential)


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """The difference between the labels at sites; 0 for identical, 1 for maximally different ones."""

    # ½ Σ |p_site(label) − p_all(label)|, mean over the sites: the share of samples whose label would have to change
    earth_mover: float
    jensen_shannon: float  # divergence (base 2) of the sites' labels, weighted by samples, over its maximum
    sizes: float  # samples of the smallest site ÷ those of the largest


def label_skew(labels: Array, sites: Sequence[Array]) -> LabelSkew:
    """Measure the skew of ``labels`` (samples,), integers from 0, given the sample numbers (n,) of each site."""
    kinds = int(labels.max()) + 1
    counts = np.array([np.bincount(labels[own], minlength=kinds) for own in sites], dtype=float)
    sizes = counts.sum(1)
    each, whole = counts / sizes[:, None], counts.sum(0) / sizes.sum()
    moved = float(np.abs(each - whole).sum(1).mean() / 2)
    divergence = _entropy(whole) - float(np.average([_entropy(row) for row in each], weights=sizes))
    # Rounding may make a zero divergence negative. Its maximum is log2 of the number of sites.
    return LabelSkew(
        moved, max(0.0, divergence / max(1e-12, np.log2(max(2, len(sites))))), float(sizes.min() / sizes.max())
    )


def _entropy(parts: Array) -> float:
    there = parts[parts > 0]  # 0 log 0 is 0
    return float(-(there * np.log2(there)).sum())  # in bits
