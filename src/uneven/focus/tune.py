"""The choice of a stream's settings: sample, label with the truth network, train the candidates, sweep, choose."""

import io
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven import fleet
from uneven.errors import ConfigError
from uneven.focus.background_subtraction import Detector, Moving
from uneven.focus.networks import LADDER, NAMED, Candidate, Cheap, LadderRung, candidates, ensemble, fused, look
from uneven.focus.objects import Objects, found
from uneven.focus.pure.sweep import LabelledObjects, Policy, SweepGrid, Tried, choose, promising, sweep, widened
from uneven.focus.pure.verdict_propagation import NO_PRECEDENTS, Precedents
from uneven.focus.truth import Crops, Truth
from uneven.focus.video import Frame, VideoSource
from uneven.runtime.jobs.devices import Devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The targets of queries, and the settings to try.

    Attributes:
        recall, precision: in frames, for every class among those that make up 95 % of the objects.
        policy: the choice among settings that no other beats in both costs.
        confidence: required confidence that the sample supports the chosen setting, from 0 to below 1
            (:mod:`uneven.focus.pure.sweep`). At 0 the sample is trusted, as in the paper.
        sample_s: length of the sample; half of it trains, half checks.
        epochs: passes over the sampled objects in training.
        ladder: the candidate networks.
        named: numbers of most frequent classes with their own output.
        grid: the other settings to try.
        devices: devices that train the candidates, as in ``fleet.train``.
        seed: of the candidates' weights and the order of samples.

    Raises:
        ConfigError: a target or the confidence is out of range.
    """

    recall: float = 0.99
    precision: float = 0.99
    policy: Policy = Policy.BALANCE
    confidence: float = 0.5
    sample_s: float = 1800.0
    epochs: int = 12
    ladder: Sequence[LadderRung] = LADDER
    named: Sequence[int] = NAMED
    grid: SweepGrid = field(default_factory=SweepGrid)
    devices: Devices = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for what, target in (("recall", self.recall), ("precision", self.precision)):
            if not 0 < target <= 1:
                raise ConfigError(f"{what}={target}: give a share above 0 and at most 1, such as 0.99")
        if not 0 <= self.confidence < 1:
            raise ConfigError(f"confidence={self.confidence}: give 0 or more, below 1, such as 0.5")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen setting, and the cost of the choice."""

    candidates: Mapping[str, Candidate]  # name → candidate
    models: Mapping[str, Cheap]  # trained
    point: Tried  # the chosen setting, its costs, and its results on the checking part
    points: tuple[Tried, ...]  # all settings tried
    before: Precedents  # the sample's verdicts with the point's features; none if verdicts are not spread
    targets: tuple[float, float]  # requested recall and precision
    confidence: float
    price: Mapping[str, float]  # step → cost in seconds; ``truth_calls`` in objects

    @property
    def candidate(self) -> Candidate:
        return self.candidates[self.point.setting.network]

    @property
    def model(self) -> Cheap:
        return self.models[self.point.setting.network]

    def setting(self) -> dict[str, Any]:
        """Return the setting as plain data for the index."""
        return {
            **asdict(self.point.setting), "named": list(self.candidate.named), "classes": self.candidate.classes,
            "removed": self.candidate.rung.removed, "side": self.candidate.rung.side,
            "ingest": self.point.ingest, "query": self.point.query,
            "results": [asdict(result) for result in self.point.results],
            "tried": [[point.ingest, point.query] for point in self.points if point.meets(*self.targets)],
        }  # fmt: skip

    def weights(self) -> bytes:
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        return file.getvalue()


def restored(setting: Mapping[str, Any], weights: bytes) -> tuple[Candidate, Cheap]:
    """Return the network that :class:`Tuned` wrote."""
    candidate = Candidate(LadderRung(setting["removed"], setting["side"]), tuple(setting["named"]), setting["classes"])
    model = candidate.build()
    model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
    return candidate, fused(model)


def sampled(
    source: VideoSource, per_s: float, wanted: Wanted, side: int, detector: Detector | None
) -> tuple[Objects, Objects]:
    """Return the objects to train on and to check with: those of the first and the second half of the sample."""
    length_s = source.length_s()
    sample_s = wanted.sample_s if length_s is None else min(wanted.sample_s, length_s)
    # Halves, not a random split: consecutive frames show the same objects, which must not be on both sides.
    half = max(1, int(sample_s * per_s / 2))
    finder = detector or Moving()
    learn = Objects.join(list(found(until(source.frames(per_s), half), finder, side)), side)
    check = Objects.join(list(found(until(source.frames(per_s, half), 2 * half), finder, side)), side)
    return learn, check


def until(frames: Iterable[Frame], end: int) -> Iterator[Frame]:
    return takewhile(lambda frame: frame.number < end, frames)


def tune(learn: Objects, check: Objects, truth: Truth, wanted: Wanted = Wanted()) -> Tuned:
    """Train the candidates on ``learn``, choose by ``check``; ConfigError if nothing moves or targets are out of
    reach."""
    began_s, calls = time.perf_counter(), truth.calls
    taught, said = truth.label(learn.crops), truth.label(check.crops)
    labels, seen = taught[0], LabelledObjects(check.frame, said[0], len(truth.classes))
    labelled_s = time.perf_counter()
    tried = candidates(labels, len(truth.classes), wanted.ladder, wanted.named)
    with tempfile.TemporaryDirectory(prefix="uneven-focus-") as folder:
        made = ensemble(tried, learn.crops, labels, wanted.epochs, wanted.seed)
        result = fleet.train(made, devices=wanted.devices, directory=Path(folder), progress=False)
        models = {one.name: _cheap(result.model(one.name)) for one in tried}
    trained_s = time.perf_counter()
    looked = [look(one, models[one.name], check.crops) for one in tried]
    points = list(sweep(seen, looked, truth.work(), wanted.grid))
    aim = wanted.recall, wanted.precision, wanted.policy, wanted.confidence
    good = promising(points, *aim)
    best = {one.name: [point for point in good if point.setting.network == one.name] for one in looked}
    again = [point for each in best.values() for point in each[: wanted.grid.widened]]
    before = {one.name: _precedents(one, models, learn.crops, *taught) for one in tried if best[one.name]}
    points += widened(seen, looked, truth.work(), again, wanted.grid, before)
    point = choose(points, *aim)  # not the first of `good`: a spread setting may be cheaper
    by_name, known = {one.name: one for one in tried}, NO_PRECEDENTS
    if point.setting.spread:
        name = point.setting.network
        known = before[name].joined(_precedents(by_name[name], models, check.crops, *said))
    price = {
        "truth_calls": float(truth.calls - calls),
        "label_s": labelled_s - began_s,
        "train_s": trained_s - labelled_s,
        "sweep_s": time.perf_counter() - trained_s,
    }
    return Tuned(by_name, models, point, tuple(points), known, aim[:2], wanted.confidence, price)


def _precedents(
    candidate: Candidate,
    models: Mapping[str, Cheap],
    crops: Crops,
    labels: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
) -> Precedents:
    return Precedents.sample(look(candidate, models[candidate.name], crops).feature, labels, scores)


def _cheap(model: torch.nn.Module) -> Cheap:
    assert isinstance(model, Cheap)
    return model.eval()
