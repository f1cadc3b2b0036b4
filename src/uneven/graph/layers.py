"""The torch layers between graph layers: batch norm and dropout over the vertices of all parts.

A session replaces their ``forward``. Each other layer is tried once. A layer that mixes rows (graph norm, attention
over vertices) raises an error, because each worker has only its own vertices.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.errors import ConfigError
from uneven.graph.exchange.exact_exchange import RowMove

if TYPE_CHECKING:
    from uneven.graph.graph import PartedGraph


class OverVertices:
    """A replaced ``forward``. Copies and pickles of the model get the layer's original one."""

    def __init__(self, layer: nn.Module, call: Callable[..., Any]) -> None:
        self._layer = layer
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._layer, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._layer, "forward")


def carry_layers(model: nn.Module, g: "PartedGraph", alone: bool) -> list[nn.Module]:
    """Replace ``forward`` of the model's layers; return those layers."""
    found = []
    for name, layer in model.named_modules():
        if type(layer) is nn.Dropout:
            call: Callable[..., Any] = partial(_dropped, g)
        elif alone or g.how.name == "0c":  # one part, or no exchange
            continue
        elif isinstance(layer, _BatchNorm) and type(layer).forward is _BatchNorm.forward:
            call = partial(_normalized, g)
        elif name:
            call = partial(_tried, g, name)
        else:
            continue
        layer.forward = OverVertices(layer, call)
        found.append(layer)
    return found


def _dropped(g: "PartedGraph", layer: nn.Dropout, x: Tensor) -> Tensor:
    if x.dim() != 2 or len(x) != g.rows:
        return nn.Dropout.forward(layer, x)
    return g.dropout(x, layer.p, layer.training)


def _normalized(g: "PartedGraph", layer: _BatchNorm, x: Tensor) -> Tensor:
    """Apply batch norm with the moments of all vertices: one sum over workers forward, and one backward."""
    if not layer.training and layer.running_mean is not None:
        return _BatchNorm.forward(layer, x)
    layer._check_input_dim(x)
    carrier = g.exchange.carrier
    if len(x) != g.rows and not g.how.exact:
        raise ConfigError(f"batch norm of {len(x)} of {g.rows} rows: with exchange={g.how.name!r}, give it all rows")
    own = x[: carrier.part.roots] if len(x) == g.rows else x  # each vertex once
    axes, count = [0, *range(2, x.dim())], own.numel() // max(1, own.shape[1])
    own = own.to(torch.promote_types(own.dtype, torch.float32))
    var, mean = torch.var_mean(own, axes, correction=0) if count else (own.sum(axes), own.sum(axes))
    var, mean = var.double(), mean.double()  # float32 would lose a small variance next to a large mean
    moments = torch.cat([mean, var + mean.square(), mean.new_ones(1)]) * count
    total = RowMove.apply(moments, carrier.total, lambda one: carrier.total(one * carrier.weight) / carrier.weight)
    vertices = total[-1].detach().clamp(min=1.0)
    mean, square = (total[:-1] / vertices).tensor_split(2)
    var = square - mean.square()
    batches, means, variances = layer.num_batches_tracked, layer.running_mean, layer.running_var
    if layer.training and batches is not None and means is not None and variances is not None and carrier.whole:
        batches.add_(1)
        momentum = 1.0 / batches.item() if layer.momentum is None else layer.momentum
        means.lerp_(mean.detach().to(means.dtype), momentum)
        unbiased = var.detach() * vertices / (vertices - 1.0).clamp(min=1.0)
        variances.lerp_(unbiased.to(variances.dtype), momentum)
    scale = (var + layer.eps).rsqrt() * (1.0 if layer.weight is None else layer.weight)
    shift = (0.0 if layer.bias is None else layer.bias) - mean * scale
    shape = (-1, *[1] * (x.dim() - 2))
    return torch.addcmul(shift.to(x.dtype).view(shape), x, scale.to(x.dtype).view(shape))


def _tried(g: "PartedGraph", name: str, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call the layer; raise :class:`ConfigError` if two rows alone give other results than among all rows."""
    given, sent, call = (*args, *kwargs.values()), g.sent_bytes, type(layer).forward
    few, more = [_two(g, one) for one in args], {key: _two(g, one) for key, one in kwargs.items()}
    found = call(layer, *args, **kwargs)
    if any(isinstance(one, type(g)) for one in given) or g.sent_bytes != sent:
        return found  # it exchanges rows itself
    wanted = _two(g, _first(found))
    if g.rows < 3 or wanted is _first(found) or not given or given[0] is (*few, *more.values())[0]:
        return found  # its input or output is not per vertex
    kept = [(vars(one), dict(vars(one))) for one in layer.modules()]
    buffers = [one.clone() for one in layer.buffers()]
    try:
        # The trial must leave no trace: random state, attributes and buffers are restored.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            state = torch.get_rng_state()
            two = _first(call(layer, *few, **more)).detach()
            random = not torch.equal(state, torch.get_rng_state())
    except (ConfigError, RuntimeError, IndexError, ValueError):
        return found  # it needs the whole graph, or a value for each row
    finally:
        for now, before in kept:
            now.update(before)
        for buffer, was in zip(layer.buffers(), buffers, strict=True):
            buffer.data.copy_(was)
    off = 1e-2 * float(two.abs().max())
    if not random and not torch.allclose(two, wanted, rtol=1e-2, atol=off, equal_nan=True):
        raise ConfigError(
            f"layer {name} ({type(layer).__name__}) combines rows of different vertices, which are on different "
            "workers: use torch.nn.BatchNorm1d or torch.nn.LayerNorm, or train with one process"
        )
    if layer.training:
        vars(layer).pop("forward", None)  # tried once
    return found


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


def _two(g: "PartedGraph", one: Any) -> Any:
    of_vertices = isinstance(one, Tensor) and one.shape[:1] == (g.rows,)
    return one[-2:].detach().clone() if of_vertices and one.dtype is not torch.bool else one
