"""A run in one line, and what to change about it in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from uneven.journal.summary import Summary, WorkerSummary
from uneven.report.state import RunProgress
from uneven.report.text import count, percent

# Limits of ours: speeds that differ by a factor below _EQUAL are called equal, and these parts of the time are worth a
# sentence. Shares have followed the speeds after so many iterations.
_EQUAL, _COMMUNICATING, _LOADING, _WAITING, _SETTLED = 1.1, 0.3, 0.3, 0.1, 50

_NAMED = 16
"""Workers whose shares one line names."""


def one_line(state: RunProgress, *, whole: bool = True) -> str:
    """Return a run in one line; "" if no iteration of it was measured.

    Args:
        whole: whether the state was fed the whole journal, and not only its end.
    """
    total = state.total()
    if state.last is None or not total.iterations:
        return ""
    several = "global batches" if state.apart else "iterations"
    done = f"{state.last.iteration + 1:,}" if whole else f"last {total.iterations:,}"
    parts = [f"{done} {several}", f"{count(total.samples_per_s)} samples/s"]
    if len(total.workers) > 1:
        shares = [samples for _, samples in sorted(state.shares().items())]
        each = "/".join(map(str, shares)) if len(shares) <= _NAMED else f"{min(shares)} to {max(shares)}"
        parts += [f"{percent(total.wait_share)} waiting", f"shares {each}"]
    return ", ".join(parts)


def advice(total: Summary, settings: Mapping[str, object]) -> str:
    """Return what to change about a run, in a sentence without a full stop; "" for one worker, or if nothing is known.

    Args:
        total: the run.
        settings: as its run record has them.
    """
    speeds = sorted(worker.speed_per_s for worker in total.workers if worker.speed_per_s > 0)
    if len(total.workers) < 2 or not total.iterations or not speeds:
        return ""
    sync, balance = str(settings.get("sync", "bsp")), str(settings.get("balance", "lb-bsp"))
    seldom = f"exchange less often, with a greater `every` in `--sync {sync}`"
    if sync == "bsp":
        seldom = "average less often, with `--sync local:every=8`"
    elif total.apart and "every" not in sync:
        seldom = "exchange less often, with `--sync easgd:every=8`"
    if total.data_share >= _LOADING:
        return f"loading data takes {percent(total.data_share)} of the time: give session.loader more num_workers"
    if total.communicate_share >= _COMMUNICATING:
        return f"communication takes {percent(total.communicate_share)} of the time: {seldom}"
    waits, unequal = f"workers wait {percent(total.wait_share)} of their time", speeds[-1] / speeds[0]
    if total.wait_share >= _WAITING and not total.apart:
        if not balance.startswith(("even", "static")):
            return _held_up(total, seldom)
        if unequal >= _EQUAL:
            return f"{waits}, and the fastest computes {unequal:.1f} × as fast as the slowest: use `--balance lb-bsp`"
    if unequal < _EQUAL:
        return "all workers are equally fast: uneven gains nothing here"
    return f"{waits}: nothing to change"


def _held_up(total: Summary, seldom: str) -> str:
    """What to do if the others wait for a worker although shares follow the speeds."""
    if total.iterations < _SETTLED:
        return f"{total.iterations} iterations are too few for shares to follow the speeds: judge a longer run"
    slow, *others = sorted(total.workers, key=lambda worker: worker.wait_share)
    waits = f"the others wait {percent(sum(one.wait_share for one in others) / len(others))} of their time"
    if all(_batch(slow) <= _batch(one) for one in others):
        least = f"rank {slow.rank} has the least share, {_batch(slow):,.0f}, and {waits} for it"
        return f"{least}: leave it out, or raise the global batch, or {seldom}"
    return f"{waits} although shares follow the speeds, which change faster: {seldom}"


def _batch(worker: WorkerSummary) -> float:
    return worker.samples / worker.steps
