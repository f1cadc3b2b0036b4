"""Graph layers with PyG's names, shapes and states: ``conv(x, g)`` instead of ``conv(x, edge_index)``."""

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
        in_channels, out_channels: widths of ``x`` and of the result.
        aggr: mean, sum, max, min or gcn.
        normalize: whether to scale output rows to length 1.
        root_weight: whether to use W_r.
        bias: whether to add b.

    Raises:
        ConfigError: ``aggr`` is unknown.
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
        """Compute the layer on ``x`` (rows, in) of ``g``; return (rows, out)."""
        found = self._out(x, g)
        return F.normalize(found, p=2.0, dim=-1) if self.normalize else found

    def _out(self, x: Tensor, g: PartedGraph) -> Tensor:
        if self.aggr in ("max", "min"):
            near = g.kept(self.aggr, x, g.max if self.aggr == "max" else g.min).to(x.dtype)
        elif g.keeps(x):
            operand = g.kept(f"sage {self.aggr} {self.root_weight}", x, lambda one: self._operand(one, g))
            return _product(operand, self._weights(1), self.lin_l.bias)
        # Multiply first if that makes the rows narrower: less to gather and to send.
        elif self.in_channels > self.out_channels:
            near, *own = F.linear(x, self._weights(0)).split(self.out_channels, dim=1)
            return _plus(sum(own, self._neighbours(near, g)), self.lin_l.bias)
        else:
            near = self._neighbours(x, g)
        return self.lin_l(near) + self.lin_r(x) if self.root_weight else self.lin_l(near)

    def _weights(self, side: int) -> Tensor:
        """Return W_l and W_r concatenated, so that one product computes both."""
        return torch.cat([self.lin_l.weight, self.lin_r.weight], side) if self.root_weight else self.lin_l.weight

    def _operand(self, x: Tensor, g: PartedGraph) -> Tensor:
        near = self._neighbours(x, g)
        return torch.cat([near, x], dim=1) if self.root_weight else near

    def _neighbours(self, x: Tensor, g: PartedGraph) -> Tensor:
        if self.aggr == "gcn":
            near, degree = g.sum_and_degree(x)
            return (near + x) / (degree + 1.0)[:, None]
        return g.mean(x) if self.aggr == "mean" else g.sum(x)


class GCNConv(nn.Module):
    """Kipf and Welling's layer: D^(−1/2) (A + I) D^(−1/2) X W + b, D the in-degrees with the added loops.

    A vertex that already has a loop gets no second one, as in PyG.

    Args:
        in_channels, out_channels: widths of ``x`` and of the result.
        bias: whether to add b.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        bound = math.sqrt(6.0 / (in_channels + out_channels))  # Glorot, as in PyG
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def forward(self, x: Tensor, g: PartedGraph) -> Tensor:
        """Compute the layer on ``x`` (rows, in) of ``g``; return (rows, out)."""
        if g.keeps(x) or self.in_channels < self.out_channels:
            near = g.kept("gcn", x, lambda one: self._propagate(one, g))
            return _product(near, self.lin.weight, self.bias)
        return _plus(self._propagate(self.lin(x), g), self.bias)

    def _propagate(self, x: Tensor, g: PartedGraph) -> Tensor:
        scale = (g.degree - g.loops + 1.0).to(x.dtype).rsqrt()
        own = scale.square() * (1.0 - g.loops.to(x.dtype))
        return torch.addcmul(g.scaled_sum(x, scale, scale), x, own[:, None])


class GINConv(nn.Module):
    """The graph isomorphism layer: nn((1 + eps) · own + Σ over in-neighbours).

    Args:
        nn: any module (rows, in) → (rows, out).
        eps: initial value.
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
        """Compute the layer on ``x`` (rows, in) of ``g``; return (rows, out)."""
        near = g.kept("sum", x, g.sum).to(x.dtype)
        return self.nn(near + (1.0 + self.eps) * x)


def _product(operand: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute operand · weightᵀ + bias in the operand's dtype; a constant may be kept in bfloat16."""
    if operand.dtype is weight.dtype:
        return F.linear(operand, weight, bias)
    return _plus(F.linear(operand, weight.to(operand.dtype)).to(weight.dtype), bias)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias
