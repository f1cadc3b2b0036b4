"""Detection of changes that would silently affect a model's training during a session.

Another library may average its gradients (a ``DistributedDataParallel`` around it), shard its parameters
(``fully_shard``), or add parameters. A wrapper shows in a forward pass, at the cost of reading one attribute; the
model itself is checked once an epoch.

A ``DistributedSampler`` gives each worker an equal part of a second data set, but the gradient weights them as the
parts of the session's batch. It shows in a training pass on other tensors than the loader's, after a sampler was read.
"""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler

from uneven.errors import ConfigError
from uneven.run.model.check import check_optimizer, parts_called, refuse_wrapped
from uneven.run.model.hooks import ModelHook, keep_out_of_copies

_open: "set[ModelWatch]" = set()


class _Seen(NamedTuple):
    """A parameter when the session was set up."""

    name: str
    parameter: weakref.ref[nn.Parameter]
    trained: bool


class Unwatched:
    """Implements :class:`ModelWatch` without a model, or in a single-process run."""

    epoch = -1

    def begin(self, epoch: int) -> None: ...
    def over(self) -> None: ...

    def trying(self) -> AbstractContextManager[None]:
        return nullcontext()


class ModelWatch:
    """A check of one model from ``session.setup`` until :meth:`close`; ``epoch`` is the loader's, at first -1."""

    _midway = 0  # number of watched models that are mid-epoch now

    def __init__(
        self,
        model: nn.Module,
        warn: Callable[[str], None] = lambda text: None,
        weighted: Callable[[Any], bool] = lambda arguments: True,  # whether a pass gets the right weight
    ) -> None:
        self.epoch = -1
        self._warn = warn
        self._weighted = weighted
        self._within = False  # whether mid-epoch
        self._sampled = False  # whether a DistributedSampler was read mid-epoch, and no pass has used its samples yet
        self._tried = False
        # A finalizer of the session holds this object, so nothing here may refer to the session, as the model and the
        # parameters do by their hooks.
        self._model = weakref.ref(model)
        self._seen = {
            id(one): _Seen(name, weakref.ref(one), one.requires_grad) for name, one in model.named_parameters()
        }
        self._synchronised = _synchronised(model)
        self._innocent: weakref.ref[nn.Module] | None = None  # a DistributedDataParallel without these parameters
        called = parts_called(model)
        hook = ModelHook(self._before_forward)
        handles = [one.register_forward_pre_hook(hook, prepend=True, with_kwargs=True) for one in called]
        self._undo = [*(one.remove for one in handles), keep_out_of_copies(model)]
        self._groups = weakref.WeakKeyDictionary[torch.optim.Optimizer, list[bool]]()  # trained, at last check
        _see_steps()
        _open.add(self)
        _see_samplers()

    def close(self) -> None:
        _open.discard(self)
        _see_samplers()
        self._enter(False)
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._seen.clear()

    def begin(self, epoch: int) -> None:
        """Check the model when the session's loader starts an epoch; raises :class:`ConfigError` if it was changed."""
        model = self._model()
        if model is not None:
            refuse_wrapped(model, "session.setup was called")
            self._compare(model)
            if self.epoch < 0:
                self._look_at_hooks(model)
        self.epoch = epoch
        self._enter(True)

    def over(self) -> None:
        self._enter(False)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the parameters of an optimizer, which may have been created after setup.
        Raises :class:`ConfigError` if it holds parameters of this model, and others that no worker exchanges."""
        trained = [one.requires_grad for group in optimizer.param_groups for one in group["params"]]
        if self._groups.get(optimizer) == trained:  # already checked; this runs at every step
            return
        model = self._model()
        if model is not None and any(self._find(one) for group in optimizer.param_groups for one in group["params"]):
            self._compare(model)
            check_optimizer(optimizer, self._find)
        self._groups[optimizer] = trained

    def sampled(self) -> None:
        """Note that a DistributedSampler is read, perhaps in order to train."""
        self._sampled |= self._within and torch.is_grad_enabled()

    def _look_at_samples(self, training: bool, arguments: Any) -> None:
        """Warn once if a pass trains on the samples of a DistributedSampler."""
        if self._tried or not (training and torch.is_grad_enabled()):
            self._sampled = False  # they are evaluated on
        elif not self._weighted(arguments):
            self._sampled, self._weighted = False, lambda arguments: True
            self._warn(
                "a DistributedSampler is read inside the loop over the session's loader, and the model trains on other "
                "samples than the loader's. The sampler gives equal parts, and the gradient weights them as the parts "
                "of the session's batch. Give both data sets to one session.loader, as torch's StackDataset, or read "
                "the same samples on every worker, see docs/how-to/what-works.md"
            )

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Allow passes inside that are evaluations, or steps that are only tried, on batches of no loader."""
        before, self._tried = self._tried, True
        try:
            yield
        finally:
            self._tried = before

    def _enter(self, within: bool) -> None:
        ModelWatch._midway += within - self._within
        self._within = within

    def shares(self, model: nn.Module) -> str | None:
        """Return the name of a parameter of this model that ``model`` also has."""
        return next((seen.name for one in model.parameters() if (seen := self._find(one)) is not None), None)

    def _find(self, parameter: nn.Parameter) -> _Seen | None:
        seen = self._seen.get(id(parameter))  # the id may be reused from a freed parameter
        return seen if seen is not None and seen.parameter() is parameter else None

    def _compare(self, model: nn.Module) -> None:
        now = [(name, one, self._find(one)) for name, one in model.named_parameters()]
        there = {id(one) for _, one, seen in now if seen is not None}
        gone = [seen.name for key, seen in self._seen.items() if key not in there]
        fresh = [name for name, one, seen in now if seen is None and one.requires_grad]
        thawed = [name for name, one, seen in now if seen is not None and one.requires_grad > seen.trained]
        if thawed:
            raise ConfigError(
                f"{_some(thawed)} had requires_grad=False when session.setup was called, so its gradient would not "
                "be exchanged: freeze after session.setup(model, optimizer, find_unused_parameters=True), or set "
                "the model up in another session after the change"
            )
        if gone or fresh:
            what = f"{_some(gone)} of the model that session.setup was given {'is' if len(gone) == 1 else 'are'} gone"
            raise ConfigError(
                f"{what if gone else _some(fresh) + ' came into the model after session.setup'}: replace or add "
                "parameters (a new layer, load_state_dict(assign=True), adapters) before session.setup"
            )
        if late := _synchronised(model) - self._synchronised:
            raise ConfigError(
                f"{len(late)} layers have become SyncBatchNorm after session.setup: call convert_sync_batchnorm before"
            )

    def _look_at_hooks(self, model: nn.Module) -> None:
        """Warn of a hook on a parameter's gradient: it changes this worker's part, before the exchange."""
        for name, one in model.named_parameters():
            hooks = chain((one._backward_hooks or {}).values(), (one._post_accumulate_grad_hooks or {}).values())
            if not all(str(getattr(hook, "__module__", "")).startswith("uneven.") for hook in hooks):
                self._warn(
                    f"parameter {name} has a hook on its gradient. It runs on each worker's part of the batch, before "
                    f"the mean is taken. Only a linear one (a factor, a mask) gives the result of one process. Clip, "
                    f"clamp or normalize between loss.backward() and optimizer.step(), as with clip_grad_value_"
                )
                return

    def _before_forward(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        around = DistributedDataParallel._active_ddp_module
        if around is not None and (self._innocent is None or self._innocent() is not around):
            self._refuse_around(around)
        if self.epoch < 0 and ModelWatch._midway and not self._tried:
            self._refuse_batch_of_another()
        if self._sampled:
            self._look_at_samples(model.training, (args, kwargs))

    def _refuse_around(self, around: nn.Module) -> None:
        if self.shares(around) is not None:
            raise ConfigError(
                "the model given to session.setup runs inside a DistributedDataParallel, so its gradients would be "
                "averaged twice: leave out DistributedDataParallel(model), or the model in accelerator.prepare(model) "
                "and fabric.setup(model), and call the model that session.setup returned"
            )
        self._innocent = weakref.ref(around)

    def _refuse_batch_of_another(self) -> None:
        if torch.is_grad_enabled():
            raise ConfigError(
                "this batch is from the loader of another session in this process: train a model on the batches of one "
                "session only, put both models into one nn.Module and one session, or close the other one"
            )


@cache
def _see_steps() -> None:
    # Once a process and never removed: torch iterates over its table of hooks during a step.
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for watch in tuple(_open):
        watch.before_step(optimizer)


def refuse_shared(model: nn.Module) -> None:
    """Raise :class:`ConfigError` if an open session already has the model."""
    if _shared(model):
        gc.collect()  # the session may be unreachable
    if name := _shared(model):
        raise ConfigError(
            f"parameter {name} belongs to a session that is still open: call session.close() of that one first, or "
            "write `with uneven.Session() as session:`"
        )


def _shared(model: nn.Module) -> str | None:
    return next((name for watch in tuple(_open) if (name := watch.shares(model)) is not None), None)


def _synchronised(model: nn.Module) -> set[int]:
    return {id(layer) for layer in model.modules() if isinstance(layer, nn.SyncBatchNorm)}


def _some(names: list[str]) -> str:
    return f"parameter {names[0]}" if len(names) == 1 else f"parameters {', '.join(names[:3])}{' …' * (len(names) > 3)}"


_plain_samplers = DistributedSampler.__iter__


def _see_samplers() -> None:
    # torch has no hook here, so the method is replaced while a session is open.
    if DistributedSampler.__iter__ in (_plain_samplers, _watched_samplers):
        DistributedSampler.__iter__ = _watched_samplers if _open else _plain_samplers  # type: ignore[method-assign]


def _watched_samplers(sampler: DistributedSampler[Any]) -> Iterator[Any]:
    indices = _plain_samplers(sampler)
    return indices if sampler.num_replicas == 1 else _reported(indices)


def _reported(indices: Iterable[Any]) -> Iterator[Any]:
    for index in indices:
        for watch in tuple(_open):
            watch.sampled()
        yield index
