"""A worker's part of a graph in a script: aggregation for layers, the loss over the whole graph, and global values."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from uneven.errors import ConfigError, ConflictError, DataError, TrainingError
from uneven.graph.adjacency import GraphPart
from uneven.graph.constant import Constants
from uneven.graph.dropout import same_everywhere
from uneven.graph.exchange.clones import CloneExchange, ExchangeChoice
from uneven.graph.exchange.exact_exchange import ExactExchange, RowCarrier
from uneven.graph.graph_losses import Criterion, SplitLoss, mask_of
from uneven.graph.graph_source import GraphSource
from uneven.graph.layers import carry_layers
from uneven.graph.pure.regions import alone_s
from uneven.run.lines import Line
from uneven.run.step.callback import Callback, CallbackContext, Step


class PartedGraph(Callback):
    """This worker's part of a graph, with the operations of its layers.

    Rows of all tensors are the vertices that this worker roots, in the order of the cut.

    Args:
        source: provides the part.
        rank, size: this worker's rank, and the number of workers.
        how: the exchange.
        seed: for dropout, the same on all workers.

    Attributes:
        part: rows, edges and routes.
        degree: float32 (rows,): in-degree of each vertex in the whole graph.
        inverse_degree: float64 (rows,): 1 / degree, or 1 if that is 0.
        loops: float32 (rows,): edges from each vertex to itself.
        samples: for ``session.step(samples=…)``; it stays the same when parts move.
    """

    def __init__(self, source: GraphSource, rank: int, size: int, *, how: ExchangeChoice, seed: int = 0) -> None:
        self.source = source
        self.how = how
        self.seed = seed
        self.rank = rank
        self.size = size
        self._weight = 1.0
        self._line: Line | None = None
        self._run: CallbackContext | None = None
        self._layers: list[torch.nn.Module] = []
        self._calls = 0
        self.constants = Constants()
        self._masks = WeakTensorKeyDictionary()  # → (version, number of vertices on all workers)
        self._take(source.part(rank, size))
        self.samples = max(1, self.edges)

    @property
    def name(self) -> str:
        return "graph"

    def _take(self, part: GraphPart) -> None:
        self.part = part
        carrier = RowCarrier(part, self._line, self._weight)
        self.exchange: ExactExchange | CloneExchange = (
            ExactExchange(carrier) if self.how.exact else CloneExchange(carrier, self.how, self.size)
        )
        self.degree, self.loops, self.ids = (
            torch.from_numpy(self.source.store.array(name)[part.ids[: self.rows]].astype(kind))
            for name, kind in (("in_degree", np.float32), ("loops", np.float32), ("order", np.int64))
        )
        self.inverse_degree = 1.0 / self.degree.double().clamp(min=1.0)
        self._everyone = torch.ones(self.rows, dtype=torch.bool)
        self.rooted = torch.arange(self.rows) < part.roots
        self.copies = torch.from_numpy(part.copies[: self.rows]).float()

    # ── the part of a session ───────────────────────────────────────────────────────────────────────────────────────

    def attach(self, run: CallbackContext) -> None:
        """Open the line of ``run``, and compare the workers' graphs.

        Raises:
            ConfigError: the session has another rank or number of workers.
            ConflictError: workers have loaded different partitions.
        """
        if (self.rank, self.size) != (run.rank, len(run.members)):
            raise ConfigError(
                f"graph.load ran as worker {self.rank} of {self.size}, but the session has rank {run.rank} of "
                f"{len(run.members)}: load after the launcher's variables are set, or give rank and size"
            )
        if self.size > 1:
            self._line = run.lines.open("graph")
            self._take(self.part)
            self._compare()
        self._begin(run)

    def _begin(self, run: CallbackContext) -> None:
        self._run = run
        self._layers = carry_layers(run.model, self, alone=self._line is None)

    def close(self) -> None:
        for one in self._layers:
            vars(one).pop("forward", None)

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Raise :class:`ConfigError` if ``members`` change, because each holds a part of the graph."""
        raise ConfigError(
            f"{self.name}: workers left or joined, but each holds a part of the graph; leave --elastic out: fewer "
            "workers can load the same folder, and resume from a checkpoint"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the number of dropout calls, so that a resumed run draws the same masks."""
        return {"dropout calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._calls = state["dropout calls"]

    def _compare(self) -> None:
        assert self._line is not None
        same = [int(self.source.store.facts.fingerprint[:15], 16), *(one.stop for one in self.source.groups(self.size))]
        told = self._gathered(torch.tensor([*same, self.samples], dtype=torch.int64))
        self._weight = self.samples / sum(int(one[-1]) for one in told.values())
        self.exchange.carrier.weight = self._weight
        for rank, one in told.items():
            if one[:-1].tolist() != same:
                raise ConflictError(
                    f"rank {rank} has a different partition than rank {self.rank}: give all workers the same folder"
                )

    def _gathered(self, mine: Tensor) -> dict[int, Tensor]:
        """Return rank → its tensor, of the shape of ``mine``, except for lost workers."""
        if self._line is None:
            return {self.rank: mine}
        members = self._line.members
        each = [torch.empty_like(mine) for _ in members]
        there = self._line.gather(mine, each).wait()
        return {rank: one for rank, one in zip(members, each, strict=True) if rank in there}

    def _renew(self) -> None:
        if self._run is not None:
            self._run.work_changed()
        self.constants = Constants()
        self._masks.clear()
        self._take(self.source.part(self.rank, self.size))

    def rebalance(self, least: float = 0.05) -> bool:
        """Move whole parts between workers if that shortens steps, given each worker's own time per step.

        It needs a folder with several times as many parts as workers. Every worker calls it between two steps. If it
        returns True, the rows of all tensors have changed: get them again. Gradients do not depend on it.

        Args:
            least: minimum share of a step that must be saved.

        Returns:
            Whether parts moved, the same on all workers. False until step times are known.
        """
        if self._run is None or self._line is None:
            return False
        told = self._gathered(torch.tensor([alone_s(*self._run.own_time())], dtype=torch.float64))
        taken_s = [one.item() for one in told.values()]
        known = len(taken_s) == self.size and all(0.0 < one < math.inf for one in taken_s)
        if not known or not self.source.faster(self.size, taken_s, least):
            return False
        self.finish()  # late messages are for the old rows
        self._renew()
        return True

    def before_step(self, step: Step) -> None:
        """Check that ``step`` averages gradients, with the weights by which losses are scaled.

        Raises:
            TrainingError: ``samples`` is not that of the graph.
            ConfigError: the policy would exchange rows between different models.
        """
        if self.how.name != "0c" and not step.averaged:
            raise ConfigError(
                f"exchange={self.how.name!r} needs gradients averaged over all workers in every step, and the "
                f"policy does not average at step {step.clock}: use sync='bsp', or exchange='0c'"
            )
        self.exchange.begin()
        if abs(step.weight - self._weight) > 1e-12:
            raise TrainingError(
                f"rank {self.rank} takes {step.samples} of {sum(step.shares)} samples in this step: with a graph, give "
                f"session.step(samples=g.samples), which is {self.samples} here"
            )

    # ── this worker's rows ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def rows(self) -> int:
        """The number of rows of all tensors here."""
        return self.exchange.rows

    @property
    def edges(self) -> int:
        """The number of edges of this worker's part."""
        return len(self.part.adjacency.into.columns)

    def tensor(self, name: str) -> Tensor:
        """Return this worker's rows, (rows, ...), of the tensor ``name`` passed to ``partition``."""
        return self.source.store.rows(name, self.part.ids[: self.rows])

    @property
    def x(self) -> Tensor:
        """The features (rows, d), as a constant: sums over them are cached."""
        return self.constant(self.tensor("x"))

    @property
    def y(self) -> Tensor:
        """The labels, (rows, ...)."""
        return self.tensor("y")

    def constant(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Declare that ``x`` (rows, d) never changes, so that the first layer's sums over it are computed once.

        Args:
            dtype: of the cached operand of the first layer's product; bfloat16 if the processor supports it.

        Raises:
            ConfigError: ``x`` requires a gradient, or has another number of rows.
        """
        if x.shape[0] != self.rows:
            raise ConfigError(f"features of shape {tuple(x.shape)}: this part has {self.rows} rows")
        return self.constants.add(x, dtype)

    # ── for layers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of ``x`` (rows, d) over all in-neighbours, (rows, d). All workers call it in order."""
        return self.scaled_sum(x, None)

    def sum_and_degree(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of ``x`` (rows, d) and its number of in-edges (rows,), lower with a late or no exchange."""
        self._check(x)
        found, degree = self.exchange.sum(x)
        return found, self.degree.to(x.dtype) if degree is None else degree

    def scaled_sum(self, x: Tensor, scale: Tensor | None, weight: Tensor | None = None) -> Tensor:
        """Return scale · Σ of weight · x over in-neighbours, (rows, d); factors are (rows,), of ``x``'s dtype, or
        None."""
        self._check(x)
        return self.exchange.sum(x, scale, weight)[0]

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of ``x`` (rows, d) over all in-neighbours, (rows, d); 0 without any."""
        if self.how.exact:
            return self.scaled_sum(x, self.inverse_degree.to(x.dtype))
        found, degree = self.sum_and_degree(x)
        return found / degree.clamp(min=1.0)[:, None]

    def max(self, x: Tensor) -> Tensor:
        """Return the maximum of ``x`` (rows, d) over all in-neighbours per column, (rows, d); 0 without any."""
        self._check(x)
        return self.exchange.max(x).masked_fill(self.degree[:, None] == 0.0, 0.0)

    def min(self, x: Tensor) -> Tensor:
        """Return the minimum of ``x`` (rows, d) over all in-neighbours per column, (rows, d); 0 without any."""
        return -self.max(-x)

    def keeps(self, x: Tensor) -> bool:
        """Return whether ``x``, of any shape, is a constant with cached results."""
        return self.how.exact and x in self.constants

    def kept(self, what: str, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``make(x)``, cached under the name ``what`` if ``x``, of any shape, is a constant."""
        return self.constants.made(what, x, make) if self.how.exact else make(x)

    def _check(self, x: Tensor) -> None:
        if x.dim() != 2 or x.shape[0] != self.rows:
            raise ConfigError(
                f"a layer was given {tuple(x.shape)}: this part of the graph has {self.rows} rows; give x of this part"
            )
        if not x.is_floating_point():
            raise ConfigError(f"a layer was given {x.dtype}: give floating-point features, x.float()")

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
        """Drop entries of ``x`` (rows, d) with probability ``p`` if ``training``.

        The mask depends on the vertex, so it is the same for any number of workers.

        All workers call it in the same order. In a session, ``nn.Dropout`` layers of the model use it.
        """
        if not training or p == 0.0:
            return x
        self._check(x)
        self._calls += 1
        return same_everywhere(x, self.ids, p, self.seed * 1_000_003 + self._calls)

    # ── global values ───────────────────────────────────────────────────────────────────────────────────────────────

    def loss(self, criterion: Criterion, output: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return this worker's share of the criterion over the vertices of ``mask`` in the whole graph, each counted
        once.

        Gradients equal those of one process. The value is scaled such that its mean over workers weighted by samples,
        which ``session.log`` draws, is that of one process.

        Args:
            criterion: a function of ``torch.nn.functional``, optionally in ``functools.partial``, a module of
                ``torch.nn``, or your own function that also accepts ``reduction="sum"``.
            output, y: (rows, ...).
            mask: bool (rows,) or (rows, 1); None for all vertices.

        Raises:
            DataError: the mask is empty on all workers, or shapes do not fit.
            ConfigError: the criterion is not a mean or a sum over vertices.
        """
        split = SplitLoss(criterion)
        mask = mask_of(self.rows, self._everyone if mask is None else mask, output, y)
        self._count(mask)
        if self.size == 1:
            return split.whole(output[mask], y[mask])
        mine = mask & self.rooted
        split.check(output[mine], y[mine])
        everywhere = 1.0 if split.summed else self.total(split.divisor(output[mine], y[mine])).item()
        if not self.exchange.carrier.whole:
            everywhere = 1.0  # the step will be skipped
        found = output[:0].sum()  # keeps the autograd graph if this worker has no vertices in the mask
        # With the identity backward pass, no gradient reaches other copies: each copy takes 1 / copies of the loss.
        for copies in self.copies.unique().tolist() if self.how.backward == "identity" else (1.0,):
            rows = mask & (self.copies == copies) if self.how.backward == "identity" else mine
            if rows.any():
                found = found + split.sum(output[rows], y[rows]) / copies
        return found / (everywhere * self._weight)

    def _count(self, mask: Tensor) -> int:
        version, found = self._masks.get(mask, (None, 0))
        if version == mask._version:
            return found
        found = int(self.total((mask & self.rooted).sum().double()))
        if not self.exchange.carrier.whole:
            return 1  # the step will be skipped
        if not found:
            raise DataError("the mask is empty on all workers: select at least one vertex")
        self._masks[mask] = (mask._version, found)
        return found

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of ``value``, of one shape, over all workers; a collective."""
        return self.exchange.carrier.total(value.detach())

    def accuracy(self, output: Tensor, y: Tensor, mask: Tensor | None = None) -> float:
        """Return the share of correct predictions over the vertices of ``mask`` in the whole graph; every worker calls
        it.

        Args:
            output: (rows, classes), at least 2 classes; the maximum is the prediction.
            y: classes, (rows,) or (rows, 1).

        Raises:
            DataError: the mask is empty on all workers, or shapes do not fit.
        """
        mask = mask_of(self.rows, self._everyone if mask is None else mask, output, y)
        if output.dim() != 2 or output.shape[1] < 2 or y.shape[1:] not in ((), (1,)):
            raise DataError(
                f"g.accuracy of outputs {tuple(output.shape)} and labels {tuple(y.shape)}: give outputs [rows, "
                "classes] and one label per row; for a single logit z, torch.cat([-z, z], 1)"
            )
        right = (output.argmax(dim=1) == y.reshape(-1)) & mask & self.rooted
        return self.total(right.sum().double()).item() / self._count(mask)

    def gather(self, output: Tensor) -> Tensor | None:
        """Gather ``output`` (rows, ...) as (vertices, ...) in the original order on rank 0; None elsewhere. A
        collective."""
        output, ids = output.detach()[self.rooted].contiguous(), self.ids[self.rooted]
        counts = [int(one) for one in self._gathered(torch.tensor([len(ids)])).values()]
        if self.rank and self._line is not None:
            for one in (ids, output):
                self._line.send(one, 0).wait()
            return None
        found = output.new_empty(sum(counts), *output.shape[1:])
        found[ids] = output
        for other, count in enumerate(counts[1:], start=1):
            assert self._line is not None  # several counts come from several workers
            theirs, rows = ids.new_empty(count), output.new_empty(count, *output.shape[1:])
            for one in (theirs, rows):
                self._line.receive(one, other).wait()
            found[theirs] = rows
        return found

    def finish(self) -> None:
        """Wait for late messages after the last step. Every worker calls it."""
        self.exchange.finish()

    @property
    def sent_bytes(self) -> int:
        """The bytes that this worker has sent on the graph's line."""
        return 0 if self._line is None else self._line.traffic.sent_bytes


def load(
    where: str | Path | Any,
    *,
    exchange: str = "exact",
    backward: str | None = None,
    delays: Mapping[tuple[int, int], int] | None = None,
    faithful: bool = False,
    speeds: Sequence[float] | None = None,
    rank: int | None = None,
    size: int | None = None,
    seed: int = 0,
) -> PartedGraph:
    """Load a worker's part of a cut graph, or a whole graph.

    Args:
        where: a folder of :func:`partition`, or a graph in one of its formats.
        exchange: exact, or DistGNN's: cd-0, cd-r:r=5, 0c.
        backward: exact or identity; by default exact for exact, otherwise identity, as DistGNN was released.
        delays: for cd-r: (rank, rank) → another r for this pair; 1 is without delay.
        faithful: for cd-r: deal copies into bins per worker, as the released code does.
        speeds: of each worker, in any unit, if a folder has more parts than workers; None for equal.
        rank, size: this worker's rank, and the number of workers; by default the launcher's.
        seed: for dropout, the same on all workers.

    Raises:
        DataError: there is no cut graph, or a whole graph was given to several workers.
        ConfigError: there are more workers than parts, or the number of speeds is wrong.
    """
    from uneven.graph.elastic_parts import ElasticGraph
    from uneven.graph.parts_folder import GraphStore, WholeGraph
    from uneven.runtime.world import discover

    how = ExchangeChoice.of(exchange, backward, delays or {}, faithful)
    kind: type[PartedGraph] = PartedGraph
    if rank is None or size is None:
        world = discover()
        rank, size = world.rank, world.size
        if world.elastic is not None:
            kind, rank = ElasticGraph, min(rank, size - 1)  # a newcomer gets its part once it is admitted
    if isinstance(where, str | Path):
        return kind(GraphSource(GraphStore(where), speeds), rank, size, how=how, seed=seed)
    if size > 1:
        raise DataError(
            f"graph.load got a whole graph, but there are {size} workers: partition it once with graph.partition(…, "
            f"parts={size}), and load the folder"
        )
    return PartedGraph(GraphSource(WholeGraph(where)), 0, 1, how=how, seed=seed)
