"""Layers with PyG's names, shapes and states: ``conv(x, g)`` where PyG has ``conv(x, edge_index)``.

They multiply first where that makes rows narrower, and take sums over constant features as made once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.graph.graph import PartedGraph

AGGREGATIONS = ("mean", "sum", "max", "min", "gcn")


class SAGEConv(nn.Module):
    """GraphSAGE: W_l · aggr over in-neighbours + W_r · own + b.

    With ``aggr="gcn"``: W_l · (Σ over in-neighbours + own) / (deg + 1) + b, as in DGL and DistGNN; no W_r.

    Args:
        aggr: mean, sum, max, min or gcn.
        normalize: whether rows of the result have length 1.
        root_weight: whether there is W_r.

    Raises:
        ConfigError: no such ``aggr``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if aggr not in AGGREGATIONS:
            raise ConfigError(f"SAGEConv(aggr={aggr!r}): give one of {', '.join(AGGREGATIONS)}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.aggr = aggr
        self.normalize = normalize
        self.root_weight = root_weight and aggr != "gcn"
        self.lin_l = nn.Linear(in_channels, out_channels, bias=bias)
        if self.root_weight:
            self.lin_r = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, g: PartedGraph) -> Tensor:
        """[rows, in] → [rows, out]."""
        found = self._out(x, g)
        return F.normalize(found, p=2.0, dim=-1) if self.normalize else found

    def _out(self, x: Tensor, g: PartedGraph) -> Tensor:
        if self.aggr in ("max", "min"):
            extreme = g.max if self.aggr == "max" else g.min
            known = g.kept(self.aggr, x, extreme)
            return self._with_own(self.lin_l(extreme(x) if known is None else known), x)
        operand = g.kept(f"sage {self.aggr} {self.root_weight}", x, lambda one: self._operand(one, g))
        if operand is not None:
            weight = torch.cat([self.lin_l.weight, self.lin_r.weight], 1) if self.root_weight else self.lin_l.weight
            return _product(operand, weight, self.lin_l.bias)
        if self.in_channels <= self.out_channels:
            return self._with_own(self.lin_l(self._neighbours(x, g)), x)
        if not self.root_weight:
            return _plus(self._neighbours(F.linear(x, self.lin_l.weight), g), self.lin_l.bias)
        both = F.linear(x, torch.cat([self.lin_l.weight, self.lin_r.weight]))
        near, own = both.split(self.out_channels, dim=1)
        return _plus(self._neighbours(near, g) + own, self.lin_l.bias)

    def _operand(self, x: Tensor, g: PartedGraph) -> Tensor:
        near = self._neighbours(x, g)
        return torch.cat([near, x], dim=1) if self.root_weight else near

    def _neighbours(self, x: Tensor, g: PartedGraph) -> Tensor:
        if self.aggr == "gcn":
            near, degree = g.sum_and_degree(x)
            return (near + x) / (degree + 1.0)[:, None]
        return g.mean(x) if self.aggr == "mean" else g.sum(x)

    def _with_own(self, near: Tensor, x: Tensor) -> Tensor:
        return near + self.lin_r(x) if self.root_weight else near


class GCNConv(nn.Module):
    """Kipf and Welling's layer: D^(−1/2) (A + I) D^(−1/2) X W + b, D the in-degrees with the added loops.

    A vertex that has a loop of its own keeps that one, as in PyG.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        bound = math.sqrt(6.0 / (in_channels + out_channels))  # Glorot, as PyG has it
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x: Tensor, g: PartedGraph) -> Tensor:
        """[rows, in] → [rows, out]."""
        near = g.kept("gcn", x, lambda one: self._propagate(one, g))
        if near is not None:
            return _product(near, self.lin.weight, self.bias)
        if self.in_channels < self.out_channels:
            return _plus(self.lin(self._propagate(x, g)), self.bias)
        return _plus(self._propagate(self.lin(x), g), self.bias)

    def _propagate(self, x: Tensor, g: PartedGraph) -> Tensor:
        scale = (g.degree - g.loops + 1.0).to(x.dtype).rsqrt()
        own = scale.square() * (1.0 - g.loops.to(x.dtype))
        return torch.addcmul(g.scaled_sum(x, scale, scale), x, own[:, None])


class GINConv(nn.Module):
    """Graph isomorphism layer: nn((1 + eps) · own + Σ over in-neighbours).

    Args:
        nn: any module [rows, in] → [rows, out].
        eps: its first value.
        train_eps: whether it is trained.
    """

    eps: Tensor

    def __init__(self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn = nn
        first = torch.tensor([float(eps)])
        if train_eps:
            self.eps = torch.nn.Parameter(first)
        else:
            self.register_buffer("eps", first)

    def forward(self, x: Tensor, g: PartedGraph) -> Tensor:
        """[rows, in] → [rows, out]."""
        known = g.kept("sum", x, g.sum)
        near = g.sum(x) if known is None else known.to(x.dtype)
        found: Tensor = self.nn(near + (1.0 + self.eps) * x)
        return found


def _product(operand: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """operand · weightᵀ + bias, in the operand's dtype, which may be narrower than the weight's."""
    if operand.dtype is weight.dtype:
        return F.linear(operand, weight, bias)
    return _plus(F.linear(operand, weight.to(operand.dtype)).to(weight.dtype), bias)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias
