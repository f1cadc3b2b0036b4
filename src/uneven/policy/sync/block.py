"""Policies that treat the mean movement of a block as a gradient: BMUF and DiLoCo."""

from dataclasses import replace

from uneven.errors import ConfigError
from uneven.policy.core.actions import BlockMomentum, Exchange, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.merge.outer import Outer, OuterOptimizer
from uneven.policy.sync._parts import NOTHING, flag, number, whole
from uneven.policy.sync.local import Blocks, often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts


class BMUF(Blocks):
    """Blockwise model-update filtering (2016): Δ = μ Δ + η G, x̃ += Δ, and the next block starts at x̃.

    G is the mean movement of a block, weighted by samples. Momentum 0 and block_lr 1 is local SGD. With long blocks
    from the start of training, use a warm-up: momentum makes the large first movements overshoot.

    The defaults are those of fairseq's implementation, except for its warm-up of 500 steps.

    Args:
        every: steps of a block.
        momentum: μ, 0 … 1; a rule of thumb is 1 − 1/n [recalled].
        block_lr: η, above 0.
        nesterov: start the next block at x̃ + μ Δ.
        warmup_samples: blocks that end before all workers together have taken this many samples add no momentum. The
            unit is samples because asynchronous workers take different numbers of steps.
    """

    evaluation_model = EvaluationModel.CENTRE
    shown = None

    def __init__(
        self,
        *,
        every: int = 50,
        momentum: float = 0.875,
        block_lr: float = 1.0,
        nesterov: bool = False,
        warmup_samples: int = 0,
    ) -> None:
        self.momentum = number("bmuf", "momentum", momentum, "[0, 1)")
        self.block_lr = number("bmuf", "block_lr", block_lr, "(0, inf)")
        self.nesterov = flag("bmuf", "nesterov", nesterov)
        self.warmup_samples = whole("bmuf", "warmup_samples", warmup_samples, least=0)
        merge = BlockMomentum(self.momentum, self.block_lr, self.nesterov, self.warmup_samples)
        super().__init__(every=every, merge=merge, name="bmuf")


class DiLoCo(Blocks):
    """Local steps of any optimizer, then one outer step of SGD with Nesterov momentum on the mean movement (2023).

    With G the mean movement of a block, V = μ V + G, and the next block starts at x + η (G + μ V). This is
    ``BlockMomentum(μ, η, nesterov=True)``, whose starting points are the same. The inner optimizer keeps its state.
    Outer lr 1 and momentum 0 is local SGD.

    With ``fragments`` the vector is cut into P pieces. Each is exchanged every ``every`` steps, one piece every / P
    steps after the previous one. With ``delay`` the workers train on during an exchange (Streaming DiLoCo, 2025), and
    its outcome enters ``delay`` steps later: x += outcome − what was sent, so what they learned in between is kept.

    Args:
        every: inner steps of a block. OpenDiLoCo's runs took 500; the default of 100 is exogym's.
        outer_lr: η of the outer step, above 0; 0.7 is exogym's default.
        outer_momentum: μ of the outer step, 0 … 1; 0.9 is exogym's default.
        fragments: P; a divisor of ``every``, as in torchft.
        delay: steps; below every / P, as in torchft.
        outer: factory of another outer optimizer, such as ``functools.partial(torch.optim.Adam, lr=0.01)``; it replaces
            ``outer_lr`` and ``outer_momentum``.
    """

    evaluation_model = EvaluationModel.CENTRE
    shown = 2000  # the longest block of the paper (Douillard et al. 2023) [recalled]

    def __init__(
        self,
        *,
        every: int = 100,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        fragments: int = 1,
        delay: int = 0,
        outer: OuterOptimizer | None = None,
    ) -> None:
        self.outer_lr = number("diloco", "outer_lr", outer_lr, "(0, inf)")
        self.outer_momentum = number("diloco", "outer_momentum", outer_momentum, "[0, 1)")
        self.outer = outer
        merge = BlockMomentum(self.outer_momentum, self.outer_lr, nesterov=True) if outer is None else Outer(outer)
        super().__init__(every=every, merge=merge, name="diloco")
        self.fragments = whole("diloco", "fragments", fragments, least=1)
        self.delay = whole("diloco", "delay", delay, least=0)
        self._turn = self.every // self.fragments
        # An exchange must be finished before the next one starts.
        if self.every % self.fragments or self.delay >= self._turn:
            raise ConfigError(
                f"diloco: every = {every} with fragments = {fragments} and delay = {delay}: use fragments that "
                f"divide every, and a delay below {max(1, self._turn)}"
            )

    def plan(self, view: SyncView) -> StepPlan:
        if self.fragments == 1 and not self.delay:
            return super().plan(view)
        # The plan is made before the step that it belongs to, so clock + 1 steps are finished when it takes effect.
        turn, step = divmod(view.clock + 1, self._turn)
        if step:
            return NOTHING
        one = Exchange(
            payload=Payload.PARAMETERS,
            members=view.members,
            merge=self._merge,
            moment=Moment.STEP,
            piece=((turn - 1) % self.fragments, self.fragments),
            delay=self.delay,
        )
        return StepPlan(exchanges=(one,))

    @property
    def constant(self) -> bool:
        return super().constant and self.fragments == 1 and not self.delay

    @property
    def facts(self) -> Facts:
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
