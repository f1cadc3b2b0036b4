"""A run in one line, and the advice at its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_runs import SampleRun

from uneven.journal.pure.metrics import NAN
from uneven.journal.pure.summary import Summary, WorkerSummary
from uneven.journal.reader import Follower
from uneven.journal.report.pure.advice import advice, one_line
from uneven.journal.report.pure.live_state import RunProgress


def worker(rank: int, samples: int, speed_per_s: float, wait_share: float) -> WorkerSummary:
    return WorkerSummary(
        rank=rank, samples=samples, steps=100, step_s=0.1, speed_per_s=speed_per_s, data_share=0.0, compute_share=0.5,
        wait_share=wait_share, communicate_share=0.1, control_share=0.0, prediction_error=NAN,
    )  # fmt: skip


def summary(*workers: WorkerSummary, **changed: object) -> Summary:
    usual = Summary(
        workers=workers, iterations=100, samples=6400, iteration_s=0.1, iteration_low_s=0.1, iteration_high_s=0.1,
        samples_per_s=640.0, mean_s=0.1, mean_per_s=640.0, data_share=0.0, compute_share=0.5,
        wait_share=sum(one.wait_share for one in workers) / len(workers), communicate_share=0.1, control_share=0.0,
        limit_s=0.05, fraction_of_limit=0.5,
    )  # fmt: skip
    return replace(usual, **changed)  # type: ignore[arg-type]


EQUAL = (worker(0, 3200, 320.0, 0.02), worker(1, 3200, 330.0, 0.01))
FAST, SLOW = worker(0, 6300, 1000.0, 0.3), worker(1, 100, 10.0, 0.0)
UNSTEADY = (worker(0, 5000, 1000.0, 0.0), worker(1, 1400, 200.0, 0.4))


@pytest.mark.parametrize(
    ("total", "settings", "says"),
    [
        (summary(*EQUAL), {}, "all workers are equally fast: uneven gains nothing here"),
        (
            summary(*EQUAL, communicate_share=0.6),
            {"sync": "bsp"},
            "communication takes 60 % of the time: average less often, with `--sync local:every=8`",
        ),
        (
            summary(*EQUAL, communicate_share=0.6),
            {"sync": "local:every=8"},
            "communication takes 60 % of the time: exchange less often, with a greater `every` in "
            "`--sync local:every=8`",
        ),
        (
            summary(*EQUAL, communicate_share=0.6, apart=True),
            {"sync": "asp", "balance": "even"},
            "communication takes 60 % of the time: exchange less often, with `--sync easgd:every=8`",
        ),
        (
            summary(*EQUAL, data_share=0.5, communicate_share=0.6),
            {},
            "loading data takes 50 % of the time: give session.loader more num_workers",
        ),
        (
            summary(FAST, SLOW),
            {"balance": "even"},
            "workers wait 15 % of their time, and the fastest computes 100.0 × as fast as the slowest: use "
            "`--balance lb-bsp`",
        ),
        (
            summary(FAST, SLOW),
            {"balance": "lb-bsp", "sync": "bsp"},
            "rank 1 has the least share, 1, and the others wait 30 % of their time for it: leave it out, or raise the "
            "global batch, or average less often, with `--sync local:every=8`",
        ),
        (
            summary(*UNSTEADY, iterations=18, fraction_of_limit=0.92),
            {},
            "shares follow the speeds, and steps reach 92 % of the limit: nothing to change",
        ),
        (
            summary(*UNSTEADY),
            {},
            "the others wait 40 % of their time, because speeds change faster than shares follow: average less often, "
            "with `--sync local:every=8`",
        ),
        (
            summary(FAST, SLOW, iterations=40),
            {},
            "40 iterations are too few for shares to follow the speeds: judge a longer run",
        ),
        (summary(FAST, SLOW, wait_share=0.03), {}, "workers wait 3.0 % of their time: nothing to change"),
        (summary(FAST, SLOW, apart=True, wait_share=0.3), {}, "workers wait 30 % of their time: nothing to change"),
        (summary(FAST), {}, ""),
        (summary(*EQUAL, iterations=0), {}, ""),
    ],
)
def test_advice(total: Summary, settings: dict[str, object], says: str) -> None:
    assert advice(total, settings) == says


def told(run: Path, most_bytes: float) -> tuple[str, bool]:
    follower, state = Follower(run, most_bytes), RunProgress()
    state.feed(follower.poll())
    return one_line(state, whole=follower.whole), follower.whole


def test_a_run_in_one_line_of_all_of_its_journal_or_of_its_end(tmp_path: Path) -> None:
    run = SampleRun(iterations=300).write(tmp_path)
    every, whole = told(run, float("inf"))
    assert whole
    assert every.startswith("300 iterations, ")
    newest, whole = told(run, 20_000)
    assert not whole
    assert newest.startswith("last ")
    assert 10 < int(newest.split()[1]) < 100
    assert every.partition("shares ")[2] == newest.partition("shares ")[2] != ""
    assert told(tmp_path / "nowhere", 20_000) == ("too few iterations to measure", True)
