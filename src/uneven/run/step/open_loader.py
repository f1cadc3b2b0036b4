"""Makes a session's loader, or the steps of a script that draws its batches itself; see :class:`uneven.Session`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from uneven.errors import ConfigError, DataError, TrainingError
from uneven.policy.balance import Balancer, Even
from uneven.policy.core.registry import describe
from uneven.policy.samples.order import Portion
from uneven.run.membership.state_transfer import MembershipHooks
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.opening import Division, LoaderOptions
from uneven.run.samples.sharded_files import Shards
from uneven.run.samples.stream import is_stream
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.connect import compare
from uneven.run.step.build import counter_of
from uneven.run.step.loop import StepLoop


def drawn_steps(
    loader: BalancedLoader | DrawnSteps | None,  # the session's loader or steps so far
    loop: StepLoop,
    balancer: Balancer,
    batch_size: int | None,
    samples: int | None,
) -> DrawnSteps:
    """Return the session's steps; the first call makes them. Raises ConfigError if the session is closed; there is a
    loader; workers take samples asynchronously; or the numbers are missing, both given, not whole, or another global
    batch than before."""
    loop.check_open("session.step")
    if isinstance(loader, BalancedLoader):
        raise ConfigError("session.step and session.share are for loops without a loader: leave session.loader out")
    if (batch_size is None) == (samples is None):
        raise ConfigError(f"session.step(batch_size={batch_size}, samples={samples}): give one of the two")
    number = samples if batch_size is None else batch_size
    if type(number) is not int or number < (batch_size is not None):  # True is an int for isinstance
        raise ConfigError(f"session.step(batch_size={batch_size!r}, samples={samples!r}): give a number of samples")
    if loader is None:
        return _made(loop, balancer, batch_size, samples)
    if batch_size not in (None, loader.batch_size):
        raise ConfigError(
            f"session.step(batch_size={batch_size}): the global batch of the first one was {loader.batch_size}, and it "
            f"is the same in every step"
        )
    return loader


@contextmanager
def drawn_step(
    loop: StepLoop, steps: DrawnSteps, samples: int | None, begin: Callable[[Portion], None]
) -> Iterator[Portion]:
    """Run one step whose batch the script draws.

    Raises TrainingError if another step is under way or ``samples`` is not this worker's share.
    """
    if loop.part is not None:
        raise TrainingError(
            f"session.step inside of step {loop.part.iteration}, which has not ended: a step cannot hold another one. "
            f"If a generator holds it, close that first"
        )
    steps.enter()
    part = steps.next(loop.reports.shares, samples)
    begin(part)
    loop.hands.settle()  # the batch of an earlier block without a forward pass will not get one
    loop.hands.hand(part, None)
    try:
        yield part
    except BaseException:
        loop.end(leaving=True)
        raise
    loop.end(leaving=False)


def make_loader(
    loop: StepLoop, members: MembershipHooks, asked: LoaderOptions, begin: Callable[[Portion], None]
) -> BalancedLoader:
    context, ids, parts = loop.context, asked.ids, loop.parts
    if asked.ahead and ids is not None:
        if not parts.reads:
            raise ConfigError(
                f"session.loader(ahead={asked.ahead}): nothing is asked for ahead; it is for models with tables of "
                f"uneven.embedding, given to session.setup before"
            )
        asked = replace(asked, ids=lambda batch: parts.batch_read(ids(batch)))
    division = Division(
        rank=context.rank,
        workers=len(context.members),
        seed=context.config.seed,
        split_for=loop.reports.shares,
        settled=loop.reports.settled,
        counter=counter_of(asked.dataset, context, loop.own_pace),
        changing=members.changing(asked.dataset),
    )
    return BalancedLoader(asked, division, members.calls(begin), loop.hands)


def shards_of(loop: StepLoop, dataset: Any, batch_size: int, most: int | None) -> Shards:
    """Return the number of samples in each worker's stream, and the most that each takes in one step. Raises
    DataError if ``dataset`` is not a stream with a length, or is empty, and ConfigError if workers take samples
    asynchronously."""
    if not is_stream(dataset) or not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise DataError(
            f"session.loader(sharded=True) of a {type(dataset).__name__}: it is for a stream of this worker's own, an "
            f"IterableDataset whose __len__ says how many samples this worker has, at least 1"
        )
    if loop.own_pace is not None:
        raise ConfigError(
            f"session.loader(sharded=True) under sync = {describe(loop.context.policy)}: workers take samples at their "
            f"own pace there; take a policy whose workers step together"
        )
    mine = {"sharded": True, "_length": len(dataset), "_most": batch_size if most is None else most}
    said = compare(loop.context.connection.transport, mine, "session.loader")
    return Shards(tuple(one["_length"] for one in said), tuple(one["_most"] for one in said))


def _made(loop: StepLoop, balancer: Balancer, batch_size: int | None, samples: int | None) -> DrawnSteps:
    context = loop.context
    if loop.own_pace is not None:
        raise ConfigError(
            f"session.step under sync = {describe(context.policy)}: workers take samples at their own pace there, "
            f"from a counter that only session.loader has; use a loader, or a policy whose workers step together"
        )
    elastic = context.elastic
    changing, enter = (None, None) if elastic is None else (elastic.returned, elastic.enter)
    if batch_size is not None:
        steps = DrawnSteps(batch_size, context.rank, changing=changing, enter=enter)
        loop.reports.start(steps, balancer, None, None)
        return steps
    said = compare(context.connection.transport, {"_samples": samples}, "session.step")
    each = [int(one["_samples"]) for one in said[: context.world.size]]  # of the founders
    if sum(each) == 0:
        raise ConfigError(f"session.step(samples=…): the workers say {each}; not all may be 0")
    steps = DrawnSteps(sum(each), context.rank, adds_up=True, changing=changing, enter=enter)
    assert samples is not None
    loop.reports.start(steps, Even(), samples, samples)  # equal limits: the share cannot move
    return steps
