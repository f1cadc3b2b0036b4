"""K-FAC as a callback of a session."""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError, TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.registry import parse_spec
from uneven.precondition.item_work import ItemWork
from uneven.precondition.kfac.capture import LayerWatch, find_layers
from uneven.precondition.kfac.layer import Layer, Numbers
from uneven.precondition.preconditioner import Preconditioner
from uneven.precondition.pure.schedule import AdaptiveDamping, RunningAverage, Value, value
from uneven.precondition.pure.sharing import Sharing, one_of, plain
from uneven.run.step.callback import CallbackContext, Step


class KFAC(Preconditioner):
    """Precondition gradients of Linear and Conv2d layers by Kronecker factors of the empirical Fisher matrix::

        session = uneven.Session(callbacks=[uneven.KFAC(damping=0.03, inv_update_steps=10)])

    For each layer it keeps A, the second moment of its inputs, and G, that of its output gradients, and multiplies the
    gradient by (G ⊗ A + λ)⁻¹ before ``optimizer.step()``. With unequal shares, all results are those of one process on
    the union batch. Other weights keep their plain gradient; ``notes`` lists them with the reason.

    Formulas: Pauloski et al., SC 2020 (arXiv 2007.00784) and SC 2021 (KAISA, arXiv 2107.01739), as in their authors'
    code. Defaults without a source are ours. Arguments have kfac-pytorch's names, and take its enumerations. The model
    and its learning rates are the session's.

    Args:
        damping: λ, above 0: a number, a callable of the step, or "adaptive" ("adaptive:start=0.1"), which follows the
            overshoot of steps; see :mod:`uneven.precondition.pure.schedule`.
        factor_decay: α of the running average, a callable of the factor step, or "exp": min(1 − 1/k, 0.95).
        kl_clip: bound on the step's predicted change in KL divergence, at the learning rate of the weight's group; None
            for no bound.
        factor_update_steps: steps between factor updates; a number, or a callable of the step.
        inv_update_steps: steps between refreshes of the bases; a multiple of ``factor_update_steps``.
        grad_worker_fraction: share of the workers that precondition a layer: 1 sends least in a plain step, 1 divided
            by the number of workers computes least; "auto" measures both at the start.
        assignment_strategy: owners of refreshes by "speed", "compute", "memory", or "round-robin".
        colocate_factors: whether one worker refreshes both factors of a layer.
        compute_method: "eigen" damps the product of the factors; "inverse" damps each factor and uses Cholesky, which
            is cheaper but gives λ another meaning.
        scaling: "kfc" as in SC 2020, or "compat" as in kfac-pytorch's newer code, whose λ is far smaller.
        accumulation_steps: backward passes per step, if each loss is divided by their number.
        grad_scaler: torch's gradient scaler, if used.
        skip_layers: regular expressions for names of layers that keep their plain gradient.
        refresh: "now", "shadow" (in the background, used half a period later), or "auto": in the background while every
            worker's machine has half a core idle.
        factor_dtype: of factors and bases; None for float32, or float64 if the whole model has it.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        damping: Value | str = 0.03,
        factor_decay: Value | str = 0.95,
        kl_clip: Value | None = 0.001,
        factor_update_steps: Value = 1,
        inv_update_steps: Value = 10,
        grad_worker_fraction: float | str = "auto",
        assignment_strategy: str = "speed",
        colocate_factors: bool = True,
        compute_method: str = "eigen",
        scaling: str = "kfc",
        accumulation_steps: int = 1,
        grad_scaler: Any = None,
        skip_layers: Sequence[str] = (),
        refresh: str = "now",
        factor_dtype: torch.dtype | None = None,
    ) -> None:
        sharing = Sharing(
            factor_update_steps=factor_update_steps,
            inv_update_steps=inv_update_steps,
            grad_worker_fraction=grad_worker_fraction,
            assignment_strategy=assignment_strategy,
            colocate_factors=colocate_factors,
            refresh=refresh,
            factor_dtype=factor_dtype,
        )
        super().__init__(sharing)
        method = plain(compute_method)
        one_of(compute_method=(method, ("eigen", "inverse")), scaling=(scaling, ("kfc", "compat")))
        if isinstance(accumulation_steps, bool) or accumulation_steps < 1:
            raise ConfigError(f"accumulation_steps = {accumulation_steps!r} must be a whole number of at least 1")
        if kl_clip is not None and not callable(kl_clip) and not kl_clip > 0.0:
            raise ConfigError(f"kl_clip = {kl_clip!r} must be above 0; None is for no bound")
        self._adaptive = _adaptive(damping)
        self.schedule.early = self._adaptive is not None
        self._damping: Value = 1.0 if isinstance(damping, str) else damping
        self._probe: tuple[list[Tensor], list[Tensor]] | None = None
        self._kl_clip = kl_clip
        self._method = method
        self._scaling = scaling
        self._average = RunningAverage(factor_decay)
        self._identity = 1.0
        self._accumulated = accumulation_steps
        self._scaler = grad_scaler
        self._skip = [re.compile(one) for one in skip_layers]
        self._coefficient = 0.0
        self._mass = 0.0  # total weight of the terms in this worker's sums
        self.nu = 1.0
        self._damping_now(0)

    def make(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[ItemWork]:
        groups = {id(one): group for group in optimizer.param_groups for one in group["params"]}

        def lr_of(weight: nn.Parameter) -> float:
            return float(groups[id(weight)]["lr"])

        self.numbers = Numbers(
            inverse=self._method == "inverse",
            compat=self._scaling == "compat",
            kind=self._like.dtype,
            damping=self._damping_now(0),
            lr_of=lr_of,
            clipped=self._kl_clip is not None,
        )
        layers, self.notes = find_layers(
            model, optimizer, self.numbers, lambda name: any(p.search(name) for p in self._skip)
        )
        self.layers = layers
        self._weights = [weight for one in layers for weight in one.weights]
        self._watch = LayerWatch(layers, self._take, self._counts)
        return list(layers)

    def attach(self, run: CallbackContext) -> None:
        super().attach(run)
        self._arm()

    # ── factors ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        self._drop_passes()
        self._watch.armed = self.schedule.due(self.clock).factors  # hooks cost nothing on other steps
        self._begun = False

    def _drop_passes(self) -> None:
        if any(one.passes for one in self.layers):
            self._passed.zero_()
        for one in self.layers:
            one.passes = 0
        self._batch: Step | None = None

    def _begin_factors(self) -> None:
        """Decay the sums once per factor step: in its first backward pass, or at its end on a worker without one."""
        if self._watch.armed and not self._begun:
            self._begun = True
            shrink, self._coefficient = self._average.step()
            if shrink != 1.0:
                self._sums.mul_(shrink)
                self._mass *= shrink

    def _counts(self) -> tuple[float, BatchWeight | None]:
        """Return x_i / X of the current pass, 0 outside of the loop; and the source of its weight in the gradient."""
        step = self.run.now()
        return (0.0, None) if step is None else (step.weight, self.run.turn())

    def _take(self, layer: Layer, seen: Tensor, gradient: Tensor, counts: tuple[float, BatchWeight | None]) -> None:
        if (now := self.run.now()) is None:
            return  # outside of the loop, as in session.profile
        self._begin_factors()
        if now is not self._batch:
            # Passes of an earlier batch without gradients had no step: the loop or a gradient scaler has skipped that
            # batch, possibly because of a NaN.
            if self._batch and not any(one.grad is not None and one.grad.any() for one in self._weights):
                self._drop_passes()
            self._batch = now
        layer.passes += 1
        layer.seen = True
        if layer.passes > self._accumulated:
            self._refuse_pass(layer)
        share, turn = counts
        if share == 0.0:
            return
        inputs, outputs = self._views[layer.name]
        passes = self._accumulated
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        began_s = self._clock_s()
        with self.run.spread(self.schedule.periods(self.clock)[0]):
            weight = self._coefficient * share / passes
            layer.add_inputs(inputs, seen, weight)
            in_gradient = share if turn is None else turn.in_gradient
            undo = in_gradient / scale * (1.0 if self.numbers.compat else passes / share)
            layer.add_outputs(outputs, gradient, weight, undo)
        if self._on_host:
            self._factors_taken.busy_s += self._clock_s() - began_s

    def _refuse_pass(self, layer: Layer) -> None:
        raise TrainingError(
            f"{self.name}: layer {layer.name!r} has seen {layer.passes} backward passes since the last optimizer step, "
            f"and accumulation_steps={self._accumulated}. If gradients are accumulated, say over how many passes; if "
            f"it is used several times in one pass, or the loss is made of derivatives, leave it out by "
            f"skip_layers=[{layer.name!r}]"
        )

    def laid_out(self) -> None:
        """Allocate this worker's sums, laid out by owner; they are empty whenever owners change."""
        self._sums = self._like.new_zeros(self._kept_layout.size)
        self._passed = torch.zeros_like(self._sums)  # since the last step; dropped if no step follows
        views = [self._passed[slice(*span)] for span in self._kept_layout.spans]
        self._views = {one.name: (views[2 * i], views[2 * i + 1]) for i, one in enumerate(self.layers)}

    @property
    def identity(self) -> float:
        """The remaining coefficient of the average's initial identity matrix."""
        return self._identity

    def bring_up_to_date(self) -> None:
        """Add the sums of all workers to the averages on their owners."""
        layout, average = self._kept_layout, self._average
        # the total weight travels along: if a worker is lost, the others' terms count more
        self._sums[[end - 1 for _, end in layout.bounds]] = self._mass
        if self._replicated:
            total = self.exchanges.among_those_left(self._sums)
        else:
            total = self.exchanges.to_owners(self._sums, layout)
        if mass := float(total[-1]):
            start = layout.bound(self.run.rank)[0]
            spans = [layout.spans[unit] for unit in self._kept]
            new = [total[first - start : last - start] for first, last in spans]
            sums = torch.stack([one.sum() for one in new]) if new else total[:0]
            # A NaN would stay in the average. The host waits for an accelerator once, not for each square.
            for kept, one, finite in zip(self._kept.values(), new, sums.isfinite().tolist(), strict=True):
                if finite:
                    kept.mul_(average.kept).add_(one, alpha=(1.0 - average.kept) / mass)
                else:
                    self.run.log(f"{self.name}/not_finite", 1.0)
            self._identity *= average.kept
        self._sums.zero_()
        self._mass = 0.0
        average.folded()

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _damping_now(self, step: int) -> float:
        found = value(self._damping, step) if self._adaptive is None else self._adaptive.now
        if not found > 0.0:
            raise ConfigError(f"damping = {found!r} at step {step} must be above 0")
        return found

    def before(self, step: Step, due_factors: bool) -> None:
        """Finish the factors of this step; raise :class:`TrainingError` if no hook has seen a layer."""
        self._begin_factors()
        if self._watch.armed:
            self._sums += self._passed
            self._mass += self._coefficient * step.weight
            self._factors_taken.cost += step.samples
        if self._adaptive is not None:
            self._look_back(self._adaptive)
        self.numbers.damping = self._damping_now(self.clock)
        if due_factors and step.samples and (blind := [one.name for one in self.layers if not one.seen]):
            raise TrainingError(
                f"{self.name}: layer {blind[0]!r} was in no backward pass that its hooks have seen. Compile the model "
                f"after session.setup, not before; if the layer is not used, leave it out by skip_layers=[{blind[0]!r}]"
            )

    def _look_back(self, adaptive: AdaptiveDamping) -> None:
        """Measure how the last step changed the slope along it, and remember where this one starts."""
        weights = [one for one in self._weights if one.grad is not None]
        if self._probe is not None and len(self._probe[0]) == len(weights):
            before = after = self._like.new_zeros(())
            for one, was, gradient in zip(weights, *self._probe, strict=True):
                moved = (one - was).view(-1).to(self._like.dtype)
                before = before + torch.dot(moved, gradient.view(-1).to(self._like.dtype))
                after = after + torch.dot(moved, one.grad.reshape(-1).to(self._like.dtype))  # type: ignore[union-attr]
            adaptive.seen(before.item(), after.item())
        self._probe = None
        if self.clock % _LOOK_EVERY == 0 or self.clock < _LOOK_AT_FIRST:
            self._probe = [one.clone() for one in weights], [one.grad.clone() for one in weights]  # type: ignore[union-attr]

    def bounded(self, work: ItemWork, result: Tensor, scale: float) -> float:
        """Limit steps to 3 % of the weight's norm while λ adapts. ``result`` has shape (result,)."""
        if self._adaptive is None:
            return scale
        length = scale * self.numbers.lr_of(work.weights[0]) * float(result.norm())
        most = _LONGEST * float(work.weights[0].norm())
        return scale * most / length if length > most > 0.0 else scale

    def opinion(self) -> float:
        return self._adaptive.proposed() if self._adaptive is not None else 0.0

    def settle(self, opinion: float) -> None:
        if self._adaptive is not None:
            self._adaptive.now = self.numbers.damping = opinion

    def scale(self) -> float:
        """Return ``ν = min(1, √(κ / |s|))``, with s = Σ lr² ⟨result, gradient⟩ over all layers; 1 for s = 0."""
        self.nu = 1.0
        if self._kl_clip is not None:
            ends = [end - 1 for _, end in self._result_layout.bounds]  # the sum of each worker's products
            product = sum(self._result_flat[ends].tolist())
            if product and math.isfinite(product):
                self.nu = min(1.0, math.sqrt(value(self._kl_clip, self.clock) / abs(product)))
        return self.nu

    def renewed(self) -> None:
        if self.run.rank == self.members[0]:
            self.run.log(f"{self.name}/nu", self.nu)
            found = [] if self.numbers.inverse else [one.curvature() for one in self.layers]
            curvatures = [one for one in found if one is not None]
            if curvatures:
                middle = sorted(torch.stack(curvatures).tolist())[len(curvatures) // 2]
                self.run.log(f"{self.name}/curvature_by_damping", middle / self.numbers.damping)

    def stepped(self) -> None:
        self._arm()

    def close(self) -> None:
        super().close()
        if self.works:
            self._watch.close()

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """Add λ, the identity's coefficient and the running average, for newcomers; pending sums are not saved."""
        state, average = super().state_dict(), self._average
        if not state:
            return {}
        more = {"identity": self._identity, "damping": self.numbers.damping, "taken": average.taken}
        return {**state, **more, "fade": average.fade, "kept": average.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "clock" in state:
            self._identity, self._average.taken = float(state["identity"]), int(state["taken"])
            self._average.fade, self._average.kept = float(state.get("fade", 1.0)), float(state.get("kept", 1.0))
            self._sums.zero_()
            self._mass = 0.0
            if self._adaptive is not None:
                self._adaptive.now = float(state["damping"])
            self._arm()


def _adaptive(damping: Value | str) -> AdaptiveDamping | None:
    if not isinstance(damping, str):
        return None
    name, options = parse_spec(damping)
    if name != "adaptive" or set(options) - {"start"}:
        raise ConfigError(f"damping = {damping!r}: give a number, a callable, or 'adaptive:start=0.1'")
    return AdaptiveDamping(float(str(options.get("start", _START))))


_START = 0.1  # initial λ of adaptive damping
_LONGEST = 0.03  # maximum step of adaptive damping over the norm of the weights; ours
_LOOK_EVERY, _LOOK_AT_FIRST = 5, 20  # every 5th step, and the first 20: each look copies weights and gradients
