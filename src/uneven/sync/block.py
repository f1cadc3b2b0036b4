"""The mean movement of a block as a gradient: BMUF and DiLoCo. Pure."""

from __future__ import annotations

from dataclasses import replace

from uneven.core.actions import BlockMomentum, Exchange, Moment, Payload, StepPlan
from uneven.core.views import SyncView
from uneven.errors import ConfigError
from uneven.merge.outer import Outer, OuterOptimizer
from uneven.sync._parts import NOTHING, flag, number, whole
from uneven.sync.base import Evaluated, Facts
from uneven.sync.local import Blocks, often


class BMUF(Blocks):
    """Blockwise model-update filtering (2016): Δ = μ Δ + η G, x̃ += Δ, the next block starts at x̃.

    G is the mean movement of a block, weighted by samples. Momentum 0 and block_lr 1 is local SGD. With long
    blocks from the start of a training on, give it a warm-up: what is carried on of the first movements overshoots.

    Args:
        every: steps of a block.
        momentum: μ, 0 … 1; a rule of thumb is 1 − 1/n (recalled).
        block_lr: η, above 0.
        nesterov: the next block starts at x̃ + μ Δ.
        warmup_samples: blocks that end before all together have taken so many are not carried on. In samples, as the
            steps of workers at their own pace differ.

    The defaults are those of fairseq's implementation, except for its warm-up of 500 steps.

    Raises:
        ConfigError: an argument out of range.
    """

    evaluated = Evaluated.CENTRE

    def __init__(
        self, *, every: int = 50, momentum: float = 0.875, block_lr: float = 1.0, nesterov: bool = False,
        warmup_samples: int = 0,
    ) -> None:  # fmt: skip
        self.momentum = number("bmuf", "momentum", momentum, "[0, 1)")
        self.block_lr = number("bmuf", "block_lr", block_lr, "(0, inf)")
        self.nesterov = flag("bmuf", "nesterov", nesterov)
        self.warmup_samples = whole("bmuf", "warmup_samples", warmup_samples, least=0)
        merge = BlockMomentum(self.momentum, self.block_lr, self.nesterov, self.warmup_samples)
        super().__init__(every=every, merge=merge, name="bmuf")


class DiLoCo(Blocks):
    """Local steps of any optimizer, then one outer step of SGD with Nesterov momentum on the mean movement (2023).

    With G the mean movement of a block, V = μ V + G and the next block starts at x + η (G + μ V): this is
    ``BlockMomentum(μ, η, nesterov=True)``, whose starting points are the same. The optimizer of the inner steps
    keeps its state. Outer lr 1 and momentum 0 is local SGD.

    With ``fragments`` the vector is cut into P pieces, each of which is exchanged every ``every`` steps, every / P
    steps after the one before; with ``delay`` an exchange is under way for so many steps while the workers go on
    (Streaming DiLoCo, 2025), and its outcome enters after them. What is learnt meanwhile is kept:
    x += outcome − what was sent.

    Args:
        every: inner steps of a block. OpenDiLoCo's runs took 500; the default of 100 is exogym's.
        outer_lr: η of the outer step, above 0; 0.7 is exogym's default.
        outer_momentum: μ of the outer step, 0 … 1; 0.9 is exogym's default.
        fragments: P; a divisor of ``every``, as in torchft.
        delay: steps; below every / P, as in torchft.
        outer: makes another outer optimizer, as ``functools.partial(torch.optim.Adam, lr=0.01)``; then the two options
            above do not count.

    Raises:
        ConfigError: an argument out of range.
    """

    evaluated = Evaluated.CENTRE

    def __init__(
        self, *, every: int = 100, outer_lr: float = 0.7, outer_momentum: float = 0.9, fragments: int = 1,
        delay: int = 0, outer: OuterOptimizer | None = None,
    ) -> None:  # fmt: skip
        self.outer_lr = number("diloco", "outer_lr", outer_lr, "(0, inf)")
        self.outer_momentum = number("diloco", "outer_momentum", outer_momentum, "[0, 1)")
        self.outer = outer
        merge = BlockMomentum(self.outer_momentum, self.outer_lr, nesterov=True) if outer is None else Outer(outer)
        super().__init__(every=every, merge=merge, name="diloco")
        self.fragments = whole("diloco", "fragments", fragments, least=1)
        self.delay = whole("diloco", "delay", delay, least=0)
        self._turn = self.every // self.fragments
        if self.every % self.fragments or self.delay >= self._turn:
            raise ConfigError(
                f"diloco: every = {every} with fragments = {fragments} and delay = {delay}: a block is a whole number "
                f"of steps for each fragment, and one is through before the next one leaves: take a divisor, and a "
                f"delay below {max(1, self._turn)}"
            )

    def plan(self, view: SyncView) -> StepPlan:
        """One exchange after the last step of a block, or of a part of it."""
        if self.fragments == 1 and not self.delay:
            return super().plan(view)
        turn, step = divmod(view.clock + 1, self._turn)
        if step:
            return NOTHING
        one = Exchange(
            payload=Payload.PARAMETERS, members=view.members, merge=self._merge, moment=Moment.STEP,
            piece=((turn - 1) % self.fragments, self.fragments), delay=self.delay,
        )  # fmt: skip
        return StepPlan(exchanges=(one,))

    @property
    def constant(self) -> bool:
        """Where there is an exchange of everything after every step."""
        return super().constant and self.fragments == 1 and not self.delay

    @property
    def facts(self) -> Facts:
        """Nobody waits inside a block, nor for what is under way."""
        facts = super().facts
        if self.fragments == 1 and not self.delay:
            return facts
        late = f", {self.delay} steps later" if self.delay else ""
        return replace(
            facts,
            every=self._turn,
            moves=f"a piece of {self.fragments} of the parameters, {often(self._turn)}, after the optimizer",
            waits=f"all workers for the slowest, {often(self._turn)}{late}",
        )
