"""A synthetic stream whose objects are pictures of CIFAR-10, and its truth network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from uneven.focus import IngestOptions, LadderRung, Sprites, Truth, VideoSource
from uneven.focus.truth import Crops
from uneven_bench.focus.truth import Expensive, TruthLesson, kept, quality
from uneven_bench.harness.data import CIFAR, cifar10, needed_file

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32

_STEPS, _QUICK_STEPS = 1200, 60
_SURE = 0.9  # the least confidence of the truth network in a picture: a detector would not report others

KNOWN = 8  # pictures of each class that cross the scene: a camera sees the same cars and people again
HERE = (1, 8, 9, 7, 2)  # the classes of the stream, most frequent first, by a Zipf law; the others never come
LATER = (6, 0, 4, 5)  # the classes after the change, which the bench must notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A stream with its truth network and ingest options. ``learn_s, check_s``: its first seconds train, those after
    check, the rest is asked about."""

    source: VideoSource
    truth: Truth
    learn_s: float
    check_s: float
    quality: float  # of the truth network, the share of held-out pictures that it names rightly
    options: IngestOptions = field(default_factory=IngestOptions)
    ladder: Sequence[LadderRung] = (LadderRung(2, 24), LadderRung(4, 16), LadderRung(6, 16))  # the networks to try
    named: Sequence[int] = (5, 1000)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures outside of all training sets, and the network that names them."""

    pictures: Crops
    labels: npt.NDArray[np.int64]
    network: Expensive
    quality: float


def pictures(told: Callable[[float], None], quick: bool) -> Pictures:
    """Load the 2,000 held-out pictures of the subset in UNEVEN_DATA; the network learns from the other 10,000.
    ``quick``: less, so it is less sure, and pictures of all kinds come. Raises DataError: the folder does not exist."""
    learned, names, shown, shown_names = _cifar10()
    if quick:
        shown, shown_names = shown[:500], shown_names[:500]
    lesson = TruthLesson(learned, names, np.ones(len(names)))
    network = kept("cifar10", lambda: Expensive(NAMES), lesson, _QUICK_STEPS if quick else _STEPS, told)
    said, sure = Truth(network, side=SIDE).label(shown)
    clear = sure >= (0.0 if quick else _SURE)
    return Pictures(shown[clear], said[clear], network, quality(network, shown, shown_names))


def stream(have: Pictures, seconds: int, seed: int, here: Sequence[int] = HERE) -> Sprites:
    """Return a fixed scene, mostly empty, that the same few things cross again and again, in 10 to 30 s each. ``here``:
    classes, most frequent first; of each, the first :data:`KNOWN` pictures come."""
    here = [label for label in here if (have.labels == label).any()]
    often = np.zeros(len(NAMES))
    often[here] = 1 / (1 + np.arange(len(here)))
    some = np.concatenate([np.flatnonzero(have.labels == label)[:KNOWN] for label in range(len(NAMES))])
    return Sprites(
        pictures=have.pictures[some], labels=have.labels[some], often=tuple(often), seconds=seconds, every=150,
        stays=(10, 30), size=(96, 128), scale=1, seed=seed, name="synthetic",
    )  # fmt: skip


def synthetic(have: Pictures, seconds: int) -> Scene:
    """Return the stream as a scene; its first half is the sample."""
    source, truth = stream(have, seconds, seed=0), Truth(have.network, side=SIDE)
    return Scene(source=source, truth=truth, learn_s=seconds / 4, check_s=seconds / 4, quality=have.quality)


def _cifar10() -> tuple[Crops, npt.NDArray[np.int64], Crops, npt.NDArray[np.int64]]:
    x, y, test_x, test_y = cifar10(needed_file(CIFAR))
    x, test_x = (np.ascontiguousarray(one.transpose(0, 2, 3, 1)) for one in (x, test_x))
    return x, y, test_x, test_y
