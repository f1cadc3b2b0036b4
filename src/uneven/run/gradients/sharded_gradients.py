"""The gradient exchange of a model that is sharded over the workers (``fully_shard``: FSDP2 and HSDP).

torch scatters the sums of gradients itself, layer by layer. So torch's divisor is set to 1, and the gradient at
the model's output is multiplied by x_i / X: the sums are Σ (x_i / X) ḡ_i. Gradients are linear in it, so this is exact
up to rounding for each pass, also if several wait in ``.grad``.

A host waits inside of an exchange. A device that waits by itself does so in torch's stream of computation. There are
three such places. A mark before and after each one counts the part of an exchange that computing does not hide::

    gathered parameters  ready │ the wait of the work that torch was given                            │ done
    a layer's gradients  ready │ torch waits for those of the layer before, whose memory it reuses    │ done
    the end of a pass    ready │ torch sends the rest, and waits for all sums                         │ done
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError, TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.membership import Members
from uneven.run.gradients.backward_start import on_entering, weighted_on_entering
from uneven.run.gradients.base import Gradients
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.gradients.syncnorm import weigh_sync_batch_norm
from uneven.run.lines.group_lines import GatherWork, host_carries, scatter_sum, take_from_first
from uneven.run.lines.in_step import closures_checked, is_still, refuse_held
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic
from uneven.run.measure.meter import Meter
from uneven.run.model.check import shards_of, shared_buffers
from uneven.run.model.hooks import ModelHook

_NONFINITE_EVERY = 50  # iterations; reading the flag blocks the host until the device is there


@dataclass(kw_only=True)
class ShardedGradients(Gradients):
    """The exchange of gradients of a sharded model."""

    turn_now: Callable[[], BatchWeight | None]
    observer: Meter
    roll: RollCall
    on_nonfinite: Callable[[], None]
    traffic: Traffic
    turn: BatchWeight
    group: Any
    members: Members | None
    _model: nn.Module | None = None
    _handles: list[Any] = field(default_factory=list)
    _synchronise: bool = True
    _pass: int = -1  # torch's number of the backward pass under way
    _counts: bool = False  # whether any pass in the next exchange has a weight
    _held: bool = False  # gradients of unsynchronised passes wait
    _exchanged: bool = False  # since the last step of an optimizer
    _by_host: bool = True  # whether this process waits in exchanges; otherwise its device does
    _nonfinite: torch.Tensor | None = None  # on a device that waits: how many exchanges had a NaN or an infinity

    def attach(self, model: nn.Module, owner: object, **ddp: Any) -> list[Callable[..., None]]:
        """Install on ``model``; copy shards and buffers from the first rank that holds each.
        Raises :class:`ConfigError` for DDP options such as bucket sizes, which need whole models."""
        if given := [name for name, value in ddp.items() if value not in (False, None)]:
            raise ConfigError(
                f"session.setup({'=…, '.join(given)}=…) with fully_shard: torch exchanges layer by layer, so these "
                "options have no effect; leave them out"
            )
        self._model, self.owner = model, owner
        trained = list(model.parameters())
        for one in trained:
            mesh = one.device_mesh  # type: ignore[attr-defined] # a DTensor, as was checked
            if mesh.ndim == 2:
                take_from_first([one.to_local().detach()], mesh.get_group(0))  # type: ignore[attr-defined] # as above
        device = torch.device(mesh.device_type)
        self._by_host = host_carries(device, mesh.get_group(mesh.ndim - 1))  # the same for all meshes
        if not self._by_host:
            self._nonfinite = torch.zeros((), device=device)
        several = any(one.device_mesh.ndim == 2 for one in trained)  # type: ignore[attr-defined] # as above
        scatters = _ScatterGradients if self._by_host else _ScatterInStream
        for layer in shards_of(model):
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)
            layer.set_custom_all_gather(_GatherParameters(self))
            layer.set_custom_reduce_scatter(scatters(self, several))
            if not self._by_host:
                self._handles.append(layer.register_forward_pre_hook(ModelHook(self._before_layer), with_kwargs=True))
            elif several:  # HSDP: torch then sums over replicas, and the exchange ends after that
                layer.set_all_reduce_hook(self._summed)
        take_from_first((buffer for _, buffer in shared_buffers(model)), self.group)
        self._statistics = BatchStatistics(model, self.group)
        self._handles += [
            model.register_forward_pre_hook(ModelHook(self._before_forward)),
            model.register_forward_hook(ModelHook(self._after_forward)),
            *weigh_sync_batch_norm(model, lambda: self.turn.weight * self.group.size(), self.observer),
        ]
        return [self.check_step]

    def check_apart(self, caller: str) -> None:
        raise ConfigError(
            f"{caller} with fully_shard: each pass of a sharded model needs all workers; give all the same number "
            "of batches, and add up with session.mean"
        )

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for layer in [] if self._model is None else shards_of(self._model):
            layer.set_gradient_divide_factor(float(self.group.size()))
        self._model = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        assert self._model is not None
        before, self._synchronise = self._synchronise, False
        self._model.set_requires_gradient_sync(False)  # type: ignore[operator] # FSDPModule has it
        try:
            yield
        finally:
            self._synchronise = before
            self._model.set_requires_gradient_sync(before)  # type: ignore[operator] # as above

    def check_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Raise :class:`TrainingError` if the gradients of an optimizer step were not exchanged."""
        if is_still(optimizer):
            return None
        closure = closures_checked(args, kwargs, lambda: refuse_held(self._held))
        refuse_held(self._held and closure is None)
        if not self._exchanged and closure is None and self.turn.exchanging:
            raise TrainingError(
                f"iteration {self.turn.iteration}: optimizer.step() but no gradients were exchanged: call the model "
                f"that session.setup was given, model(x), not model.forward(x) or a part of it"
            )
        return closure

    def _before_forward(self, model: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled():
            self.turn = self.turn_now() or self.turn

    def _after_forward(self, model: nn.Module, args: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            return output
        turn = self.turn
        output, found = weighted_on_entering(output, lambda: self._enter(turn))
        if not found:
            raise TrainingError(
                f"iteration {turn.iteration}: the model's output, a {type(output).__name__}, has no tensor whose "
                "gradient could be weighted: return tensors, or containers that torch knows"
            )
        if self._statistics is not None and self._synchronise and model.training:
            self.traffic.sent_bytes += self._statistics.start(turn.weight)
            self.observer.ready()
            self._statistics.finish()
            self.observer.done()
        return output

    def _enter(self, turn: BatchWeight) -> float:
        task = torch._C._current_graph_task_id()
        if task != self._pass:
            self._counts &= self._held  # otherwise earlier passes have been exchanged
            self._pass = task
            if not self._by_host:
                torch.autograd.Variable._execution_engine.queue_callback(self._before_end)
        self.turn, weight = turn, turn.in_gradient
        self._counts |= weight != 0.0
        self._held = not self._synchronise
        return weight

    def poll(self, iteration: int) -> None:
        if self._nonfinite is not None and iteration % _NONFINITE_EVERY == 0 and self._nonfinite.item():
            self._nonfinite.zero_()
            self.on_nonfinite()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Measure torch's wait for other workers inside."""
        self.observer.ready()
        with self.named(what), self.traffic.waiting():
            yield

    def named(self, what: str) -> AbstractContextManager[None]:
        """Return a context in which a failure of torch's exchange names it and the missing workers."""
        return self.roll.waiting(f"the exchange of {what} in iteration {self.turn.iteration}")

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Measure torch's wait for a layer's parameters inside."""
        with self.waiting("parameters"):
            yield
        self.observer.done()

    def begin(self, whole: torch.Tensor, shard: torch.Tensor, group: Any) -> GatherWork:
        """Start to gather a layer's parameters, flat (members · numbers,), from all workers' shards (numbers,)."""
        self.traffic.sent_bytes += shard.nbytes * (group.size() - 1)
        with self.named("parameters"):
            return GatherWork(whole, shard, group, self.gathering)  # not kept, as it holds a whole layer

    def check(self, gradients: torch.Tensor) -> None:
        """Check this worker's own gradients, flat (numbers,), before they are summed; zero those of padded batches."""
        if not self._counts:
            gradients.zero_()  # a padded batch: 0 · NaN would be NaN
        wide = torch.float64 if gradients.dtype == torch.float64 else torch.float32
        fine = torch.isfinite(gradients.sum(dtype=wide))
        if self._nonfinite is not None:
            self._nonfinite += ~fine
        elif not fine:
            self.on_nonfinite()
        self._exchanged = True

    def _summed(self, gradients: torch.Tensor) -> None:
        self.observer.done()

    def _before_layer(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():  # torch has passed the inputs through its own node, which sends the gradients
            on_entering((args, kwargs), lambda gradient: self.observer.ready())

    def _before_end(self) -> None:
        self.observer.ready()
        torch.autograd.Variable._execution_engine.queue_callback(self.observer.done)  # behind torch's own


class _LayerExchange:
    """The base of exchanges that replace torch's own, with buffers allocated as there."""

    def __init__(self, gradients: ShardedGradients) -> None:
        self._gradients = gradients

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _GatherParameters(_LayerExchange):
    """Gathers the parameters of a layer from the workers that hold its parts. Torch waits where it needs them."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> GatherWork:
        return self._gradients.begin(output_tensor, input_tensor, group)


class _ScatterGradients(_LayerExchange):
    """Scatters the summed gradients of a layer to the workers that hold its parts."""

    def __init__(self, gradients: ShardedGradients, several: bool) -> None:
        super().__init__(gradients)
        self._several = several

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        gradients = self._gradients
        gradients.check(input_tensor)
        gradients.traffic.sent_bytes += output_tensor.nbytes * (group.size() - 1)
        with gradients.waiting("gradients"):
            scatter_sum(output_tensor, input_tensor, group)
        self._end()

    def _end(self) -> None:
        if not self._several:  # otherwise `_summed` ends it, after torch's sum over replicas
            self._gradients.observer.done()


class _ScatterInStream(_ScatterGradients):
    """The same on a device that waits by itself, which has only begun to send when the call returns."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        self._gradients.observer.done()  # torch has waited for the layer before; no effect on the second call
        return super().allocate(size, dtype=dtype, device=device)

    def _end(self) -> None:
        """Leave the mark open: the next one replaces it, except that of the last layer, which the pass's end closes."""
