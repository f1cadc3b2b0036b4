"""The parts of ``uneven why --try`` that decide; ``tests/system/launch`` runs a whole trial."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from uneven.cli.why_try import RunCommand, best, options_of, throughput
from uneven.errors import ConfigError
from uneven.journal.pure.metrics import Iteration, Timing
from uneven.why.pure.findings import Explanation, Remedy


def remedy(words: str, gain: float, command: str = "") -> Remedy:
    return Remedy(words=words, gain=gain, least=gain, most=gain, command=command)


def explanation(*remedies: Remedy) -> Explanation:
    return Explanation("run", 100, 0.1, (), (), (), "", remedies=remedies)


def test_the_best_remedy_is_one_that_options_apply() -> None:
    shares = remedy("unequal shares", 2.0, "uneven run --balance lb-bsp train.py")
    local = remedy("rarely", 1.1, "uneven run --sync local:every=8 train.py")
    assert best(explanation(remedy("a faster machine", 3.0), shares, local)) == shares
    assert options_of(shares) == ["--balance", "lb-bsp"]
    assert best(explanation(remedy("a faster machine", 3.0))) is None


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--nproc 2 train.py --epochs 3", "--nproc 2 ADDED train.py --epochs 3"),
        ("--nproc 2 --sync bsp -- train.py --sync mine", "--nproc 2 --sync bsp ADDED train.py --sync mine"),
        ("--nproc-per-node=2 -m package.train 3", "--nproc-per-node=2 -m ADDED package.train 3"),
    ],
)
def test_options_are_added_in_front_of_the_script(typed: str, expected: str) -> None:
    command = RunCommand.of(["uneven", "run", *typed.split()])
    assert command.line("ADDED") == ["uneven", "run", *expected.split()]


def test_a_script_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = RunCommand.of(["uneven", "run", "train.py", "data"]).anywhere()
    assert command.target == (str(tmp_path / "train.py"), "data")


@pytest.mark.parametrize("command", [["torchrun", "train.py"], ["uneven", "watch"], ["uneven"]])
def test_another_launcher_is_refused(command: list[str]) -> None:
    with pytest.raises(ConfigError, match="only `uneven run` passes a remedy on"):
        RunCommand.of(command)


def steps(*durations_s: float) -> list[Iteration]:
    made = []
    at_s = 0.0
    for number, duration_s in enumerate(durations_s):
        at_s += duration_s
        timing = Timing(rank=0, batch=8, data_s=0.0, compute_s=duration_s, wait_s=0.0, communicate_s=0.0, control_s=0.0)
        made.append(
            Iteration(
                iteration=number, epoch=0, global_batch=8, ended_at_s=at_s, duration_s=duration_s, timings={0: timing}
            )
        )
    return made


def test_first_steps_are_not_compared() -> None:
    assert math.isclose(throughput(steps(*[1.0] * 50, *[0.1] * 150, *[9.0] * 5)), 80.0)
    assert math.isclose(throughput(steps(*[1.0] * 10, *[0.1] * 10)), 80.0)
