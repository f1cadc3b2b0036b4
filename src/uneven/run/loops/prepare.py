"""Prepares the loop: attaches the model, makes the loader, profiles the workers; see :class:`uneven.Session`."""

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import length_hint
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from uneven.errors import ConfigError, DataError
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.registry import describe
from uneven.policy.samples.order import Portion
from uneven.run.model.check import least_samples
from uneven.run.reports.profiling import steps_on
from uneven.run.samples.loader import BalancedLoader, LoaderCalls
from uneven.run.samples.opening import Division, LoaderOptions
from uneven.run.samples.sharded_files import Shards
from uneven.run.samples.stream import is_stream
from uneven.run.samples.torch_loader import taken_over
from uneven.run.start.connect import compare
from uneven.run.step.attach import Attached
from uneven.run.step.build import counter_of
from uneven.run.step.checkpoint import Checkpoint
from uneven.run.step.loop import StepLoop
from uneven.run.step.refusals import check_microbatch, check_profile, check_together
from uneven.run.threads.hogwild import Threads
from uneven.runtime.rundir import mark_ready

_SLOWED_AFTER_S = 1.0  # A launcher that limits workers checks several times a second whether they are ready.


class Preparation:
    """The calls before the loop, up to its first step."""

    def __init__(self, loop: StepLoop, threads: Threads, checkpoint: Checkpoint) -> None:
        self._loop = loop
        self._threads = threads
        self._checkpoint = checkpoint
        world = loop.context.world
        self._awaited = world.run_directory if world.awaited else None  # a launcher waits there to limit this worker
        self._tried: tuple[weakref.ref[Any], ...] = ()  # model and optimizers, whose hooks may lead to the session

    def setup(self, model: Any, stateful: tuple[Any, ...], **how: Any) -> Any:
        """Attach the model; see :func:`uneven.run.step.attach.attach` for ``how``."""
        loop = self._loop
        loop.check_open("session.setup")
        if isinstance(loop.model, Attached):
            raise ConfigError(
                "session.setup was called twice: one session carries one model. Give it one nn.Module of all models, "
                "such as nn.ModuleList([a, b]), with all optimizers, and call a and b as before"
            )
        if not isinstance(model, nn.Module):
            what = type(model).__name__
            raise ConfigError(f"session.setup({what}, …): give the model first, one nn.Module, and then its optimizers")
        self._threads.check(model)
        optimizers = tuple(one for one in stateful if isinstance(one, torch.optim.Optimizer))
        loop.attach(model, optimizers, **how)
        _check_stateful(stateful)
        loop.context.participants.attach(model, stateful)
        loop.reports.needs = least_samples(model)
        if loop.loader is not None:
            loop.reports.settle(loop.loader)  # it was made without the model's needs
        self._tried = tuple(weakref.ref(one) for one in (model, *optimizers))
        return (model, *stateful) if stateful else model

    def loader(
        self,
        begin: Callable[[Portion], None],  # called before a batch is yielded
        /,
        *,
        min_batch: int | None,
        max_batch: int | None,
        epochs: int | None,
        sharded: bool,
        microbatch: int | str | None,
        together: bool,
        **options: Any,
    ) -> BalancedLoader:
        """Make the loader, with the options of :class:`LoaderOptions`, and load a state that waits for it."""
        loop, reports = self._loop, self._loop.reports
        loop.check_open("session.loader")
        if loop.loader is not None:
            raise ConfigError(
                "session.loader was called twice: one session balances one loader; use torch's own "
                "DataLoader for evaluation, or make another Session"
            )
        options = self._completed(options)
        dataset = options["dataset"]
        check_microbatch(microbatch)
        check_together(together, dataset, microbatch, options)
        if sharded:
            options["shards"] = _shards_of(loop, dataset, options["batch_size"], max_batch)
        loader = self._made(LoaderOptions(lower=1 if min_batch is None else min_batch, **options), begin)
        reports.microbatch, reports.together = microbatch, together
        reports.start(
            loader, min_batch, max_batch, shuffle=options["shuffle"], drop_last=options["drop_last"],
            microbatch=microbatch, together=together,
        )  # fmt: skip
        if epochs is not None and (length := length_hint(loader)):  # 0 of a stream of unknown length
            loop.context.scribe.plan(epochs * length)
        self._checkpoint.begin_with(loader)
        return loader

    def _completed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the options of :class:`LoaderOptions`, after those of a ``DataLoader`` are taken over."""
        context, each = self._loop.context, None
        if isinstance(given["dataset"], DataLoader):
            given, each = taken_over(given["dataset"], given)
        if each is not None:
            if context.participants.changes:
                raise ConfigError(
                    "session.loader(DataLoader(…)) in an elastic run: the number of workers changes, so give the size "
                    "of the global batch, too: session.loader(loader, global_batch_size=…)"
                )
            workers = len(context.members)
            given["batch_size"] = each * workers
            if context.rank == 0 and workers > 1:
                context.scribe.say(
                    f"the global batch is {each * workers} samples: {each} of the DataLoader × {workers} workers"
                )
        defaults = {"shuffle": True, "drop_last": False}
        return given | {name: value for name, value in defaults.items() if given[name] is None}

    def _made(self, asked: LoaderOptions, begin: Callable[[Portion], None]) -> BalancedLoader:
        loop, context, ids, parts = self._loop, self._loop.context, asked.ids, self._loop.callbacks
        there = context.participants
        if asked.ahead and ids is not None:
            if not parts.reads:
                raise ConfigError(
                    f"session.loader(ahead={asked.ahead}): ahead is for models with tables of uneven.embedding: "
                    "leave it out, or call session.setup first"
                )
            asked = replace(asked, ids=lambda batch: parts.batch_read(ids(batch)))
        if there.changes and is_stream(asked.dataset):
            raise DataError(
                "an elastic run needs a dataset with __len__ and __getitem__, to repeat samples of a lost worker"
            )
        division = Division(
            rank=context.rank, workers=len(context.members), seed=context.config.seed,
            split_for=loop.reports.shares, settled=loop.reports.settled,
            counter=counter_of(asked.dataset, context, loop.own_pace), book=there.book, changing=there.changing,
        )  # fmt: skip
        settle = partial(self._threads.settle, there.pass_over)
        calls = LoaderCalls(enter=there.enter, begin=begin, end=loop.end, settle=settle, over=loop.over)
        return BalancedLoader(asked, division, calls, loop.hands)

    def profile(
        self, step: Callable[[Any], object], batch_of: Callable[[int], Any] | None, within_s: float
    ) -> dict[int, Profile]:
        loop, loader = self._loop, self._loop.loader
        check_profile(loader, self._tried, loop.epoch, within_s, loop.context.config.timeout_s)
        if loop.context.participants.joins_later:
            return {}  # the others are training; it starts with the mean share
        assert loader is not None
        self._threads.check_one("session.profile measures a step that has the machine to itself: leave it out")
        model, stepped = self._given("session.profile")
        if batch_of is None:
            loader.sample(1)
        make, reads = (loader.sample, loader.reads_along) if batch_of is None else (batch_of, False)
        if self._say_ready():
            time.sleep(_SLOWED_AFTER_S)  # the measurement needs the launcher's limits
        loop.gradients.check_apart("session.profile")
        with loop.model.watch.trying():
            one = steps_on(step, make, reads=reads)
            return loop.reports.profile(one, model, stepped, within_s, loop.gradients.aside())

    def begin(self, part: Portion) -> None:
        """Start a step of a loop that is not several threads'."""
        if self._threads.count > 1 or self._awaited is not None:
            self._threads.check_one("a loop over a loader is one thread's: give it to session.train as a function")
            self._say_ready()
        self._loop.begin(part)

    def train(self, loop: Callable[..., object]) -> None:
        """Train one epoch in all threads."""
        loader = self._loop.loader
        if not isinstance(loader, BalancedLoader) or not self._tried:
            raise ConfigError("session.train comes after session.setup(model, optimizer) and session.loader(...)")
        self._say_ready()
        if self._threads.count > 1:
            watch = self._loop.model.watch
            watch.begin(watch.epoch + 1)
        self._threads.train(loop, loader, *self._given("session.train"))

    def _given(self, caller: str) -> tuple[nn.Module, tuple[torch.optim.Optimizer, ...]]:
        model, *optimizers = (one() for one in self._tried)
        if model is None:
            raise ConfigError(f"{caller}: the model that session.setup got was deleted: keep a reference to it")
        return model, tuple(one for one in optimizers if one is not None)

    def _say_ready(self) -> bool:
        # Lets a waiting launcher limit this worker. Not earlier: with 0.1 core, importing torch takes a minute.
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            mark_ready(awaited, self._loop.context.rank)
        return awaited is not None


def _check_stateful(objects: tuple[Any, ...]) -> None:
    """Raise ConfigError if one of the objects whose state a newcomer receives has no state."""
    for one in objects:
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise ConfigError(
                f"session.setup: {type(one).__name__} has no state_dict and load_state_dict; give it the model, its "
                "optimizers, and other state that a joining worker needs"
            )


def _shards_of(loop: StepLoop, dataset: Any, batch_size: int, most: int | None) -> Shards:
    """Return the number of samples in each worker's stream, and the most that each takes in one step."""
    if not is_stream(dataset) or not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise DataError(
            f"session.loader(sharded=True) of a {type(dataset).__name__}: give this worker's stream, an "
            "IterableDataset whose __len__ is its number of samples, at least 1"
        )
    if loop.own_pace is not None:
        raise ConfigError(
            f"session.loader(sharded=True) under sync = {describe(loop.context.policy)}: its workers take samples "
            "at their own pace; use a policy whose workers step together"
        )
    mine = {"sharded": True, "_length": len(dataset), "_most": batch_size if most is None else most}
    said = compare(loop.context.connection.transport, mine, "session.loader")
    return Shards(tuple(one["_length"] for one in said), tuple(one["_most"] for one in said))
