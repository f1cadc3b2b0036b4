"""The mean movement of a block as a gradient: BMUF and DiLoCo. Pure."""

from __future__ import annotations

from uneven.core.actions import BlockMomentum
from uneven.sync._parts import flag, number, whole
from uneven.sync.base import Evaluated
from uneven.sync.local import Blocks


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

    Args:
        every: inner steps of a block. OpenDiLoCo's runs took 500; the default of 100 is exogym's.
        outer_lr: η of the outer step, above 0; 0.7 is exogym's default.
        outer_momentum: μ of the outer step, 0 … 1; 0.9 is exogym's default.

    Raises:
        ConfigError: an argument out of range.
    """

    evaluated = Evaluated.CENTRE

    def __init__(self, *, every: int = 100, outer_lr: float = 0.7, outer_momentum: float = 0.9) -> None:
        self.outer_lr = number("diloco", "outer_lr", outer_lr, "(0, inf)")
        self.outer_momentum = number("diloco", "outer_momentum", outer_momentum, "[0, 1)")
        merge = BlockMomentum(self.outer_momentum, self.outer_lr, nesterov=True)
        super().__init__(every=every, merge=merge, name="diloco")
