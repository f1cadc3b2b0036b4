"""A run in one line, and one sentence of advice about it."""

from collections.abc import Mapping

from uneven.journal.pure.summary import Summary
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.pure.text import count, parts_of, percent
from uneven.policy.sync import seldom

# Our thresholds. Speeds within a factor of _EQUAL count as equal. Below the three shares of the time nothing needs to
# change. Shares follow the speeds after _SETTLED iterations, or at _NEAR of the limit. _LITTLE is a part of an equal
# share.
_EQUAL, _COMMUNICATING, _LOADING, _WAITING, _SETTLED, _NEAR, _LITTLE = 1.1, 0.3, 0.3, 0.1, 50, 0.85, 0.1


def one_line(state: RunProgress, *, whole: bool = True) -> str:
    """Return a run in one line; ``whole`` is False if the state covers only the journal's end."""
    total, several = state.total(), "global batches" if state.apart else "iterations"
    if state.last is None or not total.iterations:
        return f"too few {several} to measure"
    done = f"{state.last.iteration + 1:,}" if whole else f"last {total.iterations:,}"
    line = f"{done} {several}, {count(total.samples_per_s)} samples/s"
    if len(total.workers) == 1:
        return line
    shares = parts_of([samples for _, samples in sorted(state.shares().items())])
    return f"{line}, {percent(total.wait_share)} waiting, shares {shares}"


def advice(total: Summary, settings: Mapping[str, object]) -> str:
    """Return advice about a run in a sentence without a full stop; "" for one worker, or if nothing is known."""
    speeds = sorted(worker.speed_per_s for worker in total.workers if worker.speed_per_s > 0)
    if len(total.workers) < 2 or not total.iterations or not speeds:
        return ""
    sync, balance = str(settings.get("sync", "bsp")), str(settings.get("balance", "lb-bsp"))
    rarer = f"exchange less often, with a greater `every` in `--sync {sync}`"
    if other := seldom(sync, apart=total.apart):
        rarer = f"{'average' if sync == 'bsp' else 'exchange'} less often, with `--sync {other}`"
    if total.data_share >= _LOADING:
        return f"loading data takes {percent(total.data_share)} of the time: give session.loader more num_workers"
    if total.communicate_share >= _COMMUNICATING:
        return f"communication takes {percent(total.communicate_share)} of the time: {rarer}"
    waits, unequal = f"workers wait {percent(total.wait_share)} of their time", speeds[-1] / speeds[0]
    if total.wait_share >= _WAITING and not total.apart:
        if not balance.startswith(("even", "static")):
            return _held_up(total, rarer)
        if unequal >= _EQUAL:
            return f"{waits}, and the fastest computes {unequal:.1f} × as fast as the slowest: use `--balance lb-bsp`"
    if unequal < _EQUAL:
        return "all workers are equally fast: uneven gains nothing here"
    return f"{waits}: nothing to change"


def _held_up(total: Summary, rarer: str) -> str:
    """Return the advice if the others wait for one worker although shares follow the speeds."""
    if total.fraction_of_limit >= _NEAR:  # by the median step: the waits occurred in the first steps
        reached = percent(total.fraction_of_limit)
        return f"shares follow the speeds, and steps reach {reached} of the limit: nothing to change"
    if total.iterations < _SETTLED:
        return f"{total.iterations} iterations are too few for shares to follow the speeds: judge a longer run"
    slow, *others = sorted(total.workers, key=lambda worker: worker.wait_share)
    waits = f"the others wait {percent(sum(one.wait_share for one in others) / len(others))} of their time"
    if slow.samples <= _LITTLE * sum(one.samples for one in total.workers) / len(total.workers):
        least = f"rank {slow.rank} has the least share, {slow.samples / slow.steps:.0f}, and {waits} for it"
        return f"{least}: leave it out, or raise the global batch, or {rarer}"
    return f"{waits}, because speeds change faster than shares follow: {rarer}"
