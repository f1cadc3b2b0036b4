"""A check on fresh video of whether a stream's settings still reach the targets."""

from dataclasses import dataclass, replace

from uneven.errors import ConfigError, UnknownNameError
from uneven.focus.background_subtraction import Moving
from uneven.focus.ingest_stream import IngestOptions
from uneven.focus.networks import look
from uneven.focus.objects import Objects, found
from uneven.focus.pure.sweep import ClassResult, Grouped, LabelledObjects
from uneven.focus.query import VideoIndex
from uneven.focus.tune import restored, until
from uneven.focus.video import VideoSource


@dataclass(frozen=True, slots=True)
class Drift:
    """The results that queries would reach on fresh video.

    Attributes:
        results: by class name, of the classes that make up 95 % of the objects.
        recall, precision: the targets.
    """

    results: dict[str, ClassResult]
    recall: float
    precision: float

    @property
    def missed(self) -> tuple[str, ...]:
        """The classes that miss a target."""
        return tuple(name for name, one in self.results.items() if not one.meets(self.recall, self.precision))

    def __str__(self) -> str:
        lines = [
            f"{name}: recall {one.recall.value:.1%} (at least {one.recall.least:.1%}), "
            f"precision {one.precision.value:.1%} (at least {one.precision.least:.1%})"
            f"{'  MISSED' if name in self.missed else ''}"
            for name, one in self.results.items()
        ]
        return "\n".join([*lines, f"targets: recall {self.recall:.1%}, precision {self.precision:.1%}"])


def drifted(
    index: VideoIndex, source: VideoSource, sample_s: float = 600.0, options: IngestOptions | None = None
) -> Drift:
    """Check the first ``sample_s`` seconds of the fresh video ``source`` with the truth network of ``index``.

    The settings are the newest ones of the stream; ``options`` are those of the ingest.

    Raises:
        UnknownNameError: the index has no stream of that name.
        ConfigError: the index was opened without the truth network, or nothing moves in the video.
    """
    if source.name not in index.streams:
        raise UnknownNameError("stream", source.name, index.streams)
    if index.truth is None:
        raise ConfigError("checking fresh video needs the truth network: open the index with it")
    asked = options or IngestOptions()
    store = index.streams[source.name]
    number, setting = list(store.networks().items())[-1]
    frames = until(source.frames(asked.per_s), int(sample_s * asked.per_s))
    objects = Objects.join(list(found(frames, asked.detector or Moving(), store.side)), store.side)
    if not len(objects):
        raise ConfigError(f"nothing moves in the first {sample_s:g} s of {source.name}")
    seen = LabelledObjects(objects.frame, index.truth.label(objects.crops)[0], len(index.classes))
    looked = look(*restored(setting, store.weights(number)), objects.crops)
    looked = replace(looked, name=setting["network"])
    grouped = Grouped(seen, looked, setting["threshold"], store.precedents(number))
    how = setting["k"], setting["skip"], setting.get("spread", 0.0)  # missing in older indexes
    results = {index.classes[label]: grouped.ask(label, *how) for label in seen.dominant()}
    return Drift(results, store.fact("recall"), store.fact("precision"))
