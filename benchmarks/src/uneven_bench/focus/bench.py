"""``uneven bench focus``: recorded video, with cheap ingest and exact answers, against other ways."""

from typing import Any

from uneven.errors import ConfigError
from uneven_bench.focus import scenes
from uneven_bench.focus.baselines import Targets
from uneven_bench.focus.clips import clips
from uneven_bench.focus.compared import changed, compared
from uneven_bench.focus.kills import kills
from uneven_bench.focus.speed import speed
from uneven_bench.harness.show import Progress, chosen

CASES = ("synthetic", "clips", "change", "speed", "kills")
QUICK = ("synthetic", "speed")
DAY_S = 43_200  # the synthetic stream: twelve hours at one frame a second


def run(quick: bool, progress: Progress, case: str | None = None) -> dict[str, Any]:
    """Measure all cases. Result: ``scenes``: name → see :func:`~uneven_bench.focus.compared.compared`; ``refused``:
    name → reason; ``change``: see :func:`~uneven_bench.focus.compared.changed`; ``speed``, ``kills``: see the functions
    of these names. Raises UnknownNameError: the case is unknown. DataError: ``UNEVEN_DATA`` has not the data."""
    names = chosen(case, CASES, QUICK if quick else CASES)
    found: dict[str, Any] = {"scenes": {}, "refused": {}}
    work = {"synthetic": _synthetic, "clips": _clips, "change": _change, "speed": _speed, "kills": _kills}
    for name in names:
        work[name](found, quick, progress)
    return found


def _synthetic(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    have = scenes.pictures(lambda done: progress("synthetic", "train the truth network", done), quick)
    scene = scenes.synthetic(have, DAY_S // 12 if quick else DAY_S)
    found["scenes"]["synthetic"] = compared(scene, Targets(), lambda what, done: progress("synthetic", what, done))


def _clips(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    for scene in clips(lambda done: progress("clips", "train the truth network", done)):
        name = scene.source.name
        try:
            found["scenes"][name] = compared(scene, Targets(), lambda what, done: progress("clips", what, done))
        except ConfigError as error:  # no setting reaches the targets on its sample
            found["refused"][name] = str(error)


def _change(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    have = scenes.pictures(lambda done: progress("change", "train the truth network", done), quick)
    sample_s = DAY_S / 24 if quick else DAY_S / 6
    days = [
        scenes.stream(have, int(sample_s), seed, here)
        for seed, here in ((10, scenes.HERE), (11, scenes.LATER), (12, scenes.LATER))
    ]
    scene = scenes.synthetic(have, int(sample_s))
    found["change"] = changed(scene, days, sample_s, Targets(), lambda what, done: progress("change", what, done))


def _speed(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    progress("speed", "a clip of 640 x 480 on one core", 0.0)
    found["speed"] = speed(1 if quick else 5)


def _kills(found: dict[str, Any], quick: bool, progress: Progress) -> None:
    progress("kills", "processes that take in, and that ask", 0.0)
    found["kills"] = kills(2 if quick else 10)
