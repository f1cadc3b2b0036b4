"""The base of preconditioners: items with an owner, costs, statistics to keep and a result to gather.

Subclasses (K-FAC, SOAP, Muon) provide an :class:`~uneven.precondition.item_work.ItemWork` per item. This module
schedules steps, assigns owners, and packs exchanges.
"""

import math
import time
from abc import abstractmethod
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.policy.ownership.agreed_speeds import AgreedSpeeds, OwnWork, WorkerRow, agreed, better, told
from uneven.policy.ownership.placement import Placement, RankGrid, gradient_workers, grid, place
from uneven.precondition.item_exchange import PackedExchanges
from uneven.precondition.item_work import ItemWork, like, probed_share
from uneven.precondition.pure.describe import described
from uneven.precondition.pure.packing import Layout, batches
from uneven.precondition.pure.schedule import Schedule
from uneven.precondition.pure.sharing import Sharing
from uneven.precondition.refresh import Refresh, idle_cores
from uneven.run.step.callback import Callback, CallbackContext, Step
from uneven.runtime.frames import warn

# The most numbers of a batch's bases: larger ones leave the cache of a processor, or fill a device anyway.
_HOST_NUMBERS = 2**18
_DEVICE_NUMBERS = 2**24


class Preconditioner(Callback):
    """The base class of K-FAC, SOAP and Muon.

    Attributes:
        notes: name of a layer → why it keeps its plain gradient.
        clock: optimizer steps so far.
    """

    kind = "kfac"  # in a cluster description
    movable = True  # whether items may change owners
    saves_bases = False  # whether a checkpoint holds bases; otherwise they are recomputed
    keeps_failed = True  # whether a basis that is not finite leaves the previous one in use
    basis_dtype: torch.dtype | None = None  # None: that of the statistics
    owner_period = 1  # owners are chosen at a refresh in a step that is a multiple of it

    def __init__(self, how: Sharing) -> None:
        self.how = how
        self.schedule = Schedule(how.factor_update_steps, how.inv_update_steps)
        self.notes: dict[str, str] = {}
        self.clock = 0
        self.works: list[ItemWork] = []
        self._bases: dict[int, Tensor] = {}
        self._kept: dict[int, Tensor] = {}
        self._loaded: dict[str, Any] | None = None
        self._gathered: dict[str, Tensor] | None = None
        self._refreshing: Refresh | None = None
        self._began = False  # whether there is a basis
        self._replicated = False  # whether every worker keeps all squares, because any may be lost
        self._placed_among: tuple[int, ...] = ()

    # ── for subclasses ──────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def make(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[ItemWork]:
        """Return the work of each item; write ``notes`` about weights left plain."""

    def bring_up_to_date(self) -> None:
        """Update the statistics of this worker's squares, if :meth:`before` has not; a collective."""

    @property
    def identity(self) -> float:
        """The coefficient of the identity matrix in the statistics."""
        return 0.0

    def before(self, step: Step, due_factors: bool) -> None:
        """Prepare a step; gradients are averaged and plain."""

    def scale(self) -> float:
        """Return the factor of all results."""
        return 1.0

    def bounded(self, work: ItemWork, result: Tensor, scale: float) -> float:
        """Return the factor of one item's ``result``, shape (result,), from that of all."""
        return scale

    def opinion(self) -> float:
        """Return a value of this worker at a refresh; all use that of the first worker."""
        return 0.0

    def settle(self, opinion: float) -> None:
        """Use the first worker's value: the workers' own may differ by rounding."""

    def renewed(self) -> None:
        """Do nothing; called when new bases are in use."""

    def stepped(self) -> None:
        """Do nothing; called after gradients are preconditioned and ``clock`` is incremented."""

    # ── moments ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, run: CallbackContext) -> None:
        """Set up items, lines and owners for the model; raise :class:`ConfigError` without items."""
        self.run, self.optimizer = run, run.optimizers[0]
        self._like = like(run.model, self.how.factor_dtype)
        self.works = self.make(run.model, self.optimizer)
        if not self.works:
            told = "; ".join(f"{name}: {why}" for name, why in self.notes.items()) or "it has no layers"
            raise ConfigError(f"{self.name} finds no layer to precondition in this model: {told}")
        if self.notes and run.rank == run.members[0]:
            left = "; ".join(f"{name}: {why}" for name, why in self.notes.items())
            run.tell("plain-gradient", f"{self.name} leaves {len(self.notes)} layers their plain gradient: {left}")
        self._units = [(i, j) for i, work in enumerate(self.works) for j in range(work.item.squares)]
        self._units_of: list[list[int]] = [[] for _ in self.works]
        for unit, (i, _) in enumerate(self._units):
            self._units_of[i].append(unit)
        self._squares = [(self.works[i], j) for i, j in self._units]
        self._sizes = [work.sizes.kept[j] for work, j in self._squares]
        self._basis_sizes = [work.sizes.basis[j] for work, j in self._squares]
        self._measured, self._all_measured, self._factors_taken = OwnWork(), OwnWork(), OwnWork()
        self._replicated = run.lines.changing
        share = self._share(run)
        members = tuple(sorted({*run.members, run.rank}))  # a worker that is yet to join is not a member
        self.grid: RankGrid = grid(members, gradient_workers(share, len(members)))
        self._placed_among = () if self._replicated else run.members
        self.exchanges = PackedExchanges(run.lines, self.name)
        self._clock_s = time.process_time if self._on_host else time.perf_counter
        self._lay_out(self._place())

    def _share(self, run: CallbackContext) -> float:
        """Return f, measured if "auto"; 1 in elastic runs, because plain steps there must need no other worker."""
        share = self.how.grad_worker_fraction
        if self._replicated and (share not in ("auto", 1.0) or self.how.refresh != "now"):
            raise ConfigError(
                f"{self.name}(grad_worker_fraction={share!r}, refresh={self.how.refresh!r}) in an elastic run: every "
                f"worker must keep everything, because any may be lost; use grad_worker_fraction=1.0 and refresh='now'"
            )
        if isinstance(share, str):
            return 1.0 if self._replicated else probed_share(run, self.name, self.works)
        return share

    @torch.no_grad()
    def gradients_ready(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        """Refresh what is due, and precondition the gradients."""
        if optimizer is not self.optimizer:
            return
        # A GradScaler leaves it to a fused step to unscale, and to skip itself at an infinity.
        if getattr(optimizer, "found_inf", None) is not None:
            raise TrainingError(
                f"{self.name} with a GradScaler and a fused {type(optimizer).__name__}, which unscales in its step: "
                "make the optimizer with fused=False"
            )
        self._check_plan(step)
        # Decompositions need at least float32.
        with torch.autocast(self._like.device.type, enabled=False):
            self._work(step, optimizer)

    def _work(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        due = self.schedule.due(self.clock)
        self.before(step, due.factors)
        period = self.schedule.periods(self.clock)[1]
        if due.refresh or not self._began:
            with self.run.spread(period):
                self._land()
                self._begin_refresh(step, period)
        elif self._refreshing is not None and self.clock >= self._refreshing.due:
            with self.run.spread(period):
                self._land()
        self._precondition()
        self.clock += 1
        self.stepped()

    def describe(self) -> str:
        """Return a table ``[preconditioner]`` with measured costs, for ``uneven plan`` and ``uneven simulate``.

        Raises:
            ConfigError: nothing has been measured yet.
        """
        share, own = len(self.grid.rows) / len(self.members), self._all_measured.and_(self._measured)
        periods, items = self.schedule.periods(self.clock), [one.item for one in self.works]
        return described(self.kind, items, periods, share, self.how.assignment_strategy, own, self._factors_taken)

    @contextmanager
    def evaluation_model(self) -> Any:
        """Gather the factors of all workers for :meth:`state_dict` inside of the context."""
        before = self._gathered
        if self.works and before is None:
            self._gathered = self._gather()
        try:
            yield
        finally:
            self._gathered = before

    def close(self) -> None:
        """Stop the background refresh."""
        if self._refreshing is not None:
            self._refreshing.abandon()
            self._refreshing = None

    # ── owners ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def owners(self) -> dict[str, tuple[int, ...]]:
        """The rank that refreshes each square, by item name."""
        return dict(zip((one.item.name for one in self.works), self.placement.owners, strict=True))

    @property
    def _on_host(self) -> bool:
        return self._like.device.type == "cpu"

    def _own_time(self) -> tuple[float, float, float]:
        # Processor time does not measure an accelerator's work.
        return self.run.own_time() if self._on_host else (math.nan, math.nan, math.nan)

    def _place(self, table: AgreedSpeeds | None = None) -> Placement:
        period = float(self.schedule.periods(self.clock)[1])
        known: dict[str, Any] = {} if table is None else {"speeds": table.speeds, "fixed": table.fixed}
        items, how = [one.item for one in self.works], self.how
        return place(
            items, self.grid, rule=how.assignment_strategy, period=period, colocate=how.colocate_factors, **known
        )

    def _lay_out(self, placement: Placement) -> None:
        """Allocate buffers for a placement, and keep the bases that this worker already has."""
        rank, before = self.run.rank, dict(self._bases) if self._began else {}
        self.placement = placement
        self._owner_of = [placement.owners[i][j] for i, j in self._units]
        column, row = self.grid.column(rank), self.grid.row(rank)
        self._mine = [i for i in range(len(self.works)) if rank in placement.columns[i]]
        held = [unit for unit, (i, _) in enumerate(self._units) if i in set(self._mine)]
        self._base_layout = Layout.of(
            [self._basis_sizes[unit] for unit in held], [self._owner_of[unit] for unit in held], column
        )
        self._base_flat = self._like.new_empty(self._base_layout.size, dtype=self.basis_dtype)
        self._bases = {
            unit: self._base_flat[slice(*span)] for unit, span in zip(held, self._base_layout.spans, strict=True)
        }
        for unit, view in self._bases.items():
            work, j = self._squares[unit]
            view.copy_(before[unit] if unit in before else work.neutral(j))
        workers = [next(one for one in row if one in placement.columns[i]) for i in range(len(self.works))]
        # One more number per worker, for its sum of products.
        self._result_layout = Layout.of([one.sizes.result for one in self.works], workers, row, extra=1)
        self._result_flat = self._like.new_zeros(self._result_layout.size)
        keepers, ranks = ([rank] * len(self._units), (rank,)) if self._replicated else (self._owner_of, self.members)
        # One more number per rank holds the total weight of its sums.
        self._kept_layout = Layout.of(self._sizes, keepers, ranks, extra=1)
        for unit, keeper in enumerate(keepers):
            if keeper == rank and unit not in self._kept:
                self._kept[unit] = self._like.new_zeros(self._sizes[unit])
        self.laid_out()

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks among which owners are placed, ascending."""
        return tuple(sorted(rank for column in self.grid.columns for rank in column))

    def laid_out(self) -> None:
        """Do nothing; called when owners, and the layout of statistics, have changed."""

    def _move(self, placement: Placement) -> None:
        old = self._owner_of
        new = [placement.owners[i][j] for i, j in self._units]
        if not self._replicated:
            self.exchanges.move(self._kept, self._sizes, old, new, self._like)
        self._lay_out(placement)

    # ── refresh ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_refresh(self, step: Step, period: int) -> None:
        # Members that have come or gone, and a loaded state, need owners immediately.
        due = not self._began or self.clock % self.owner_period == 0 or self._placed_among != self.exchanges.members
        idle = self._choose_owners(step, period) if due else False
        mine = [unit for unit, owner in enumerate(self._owner_of) if owner == self.run.rank]
        wanted = self.how.refresh == "shadow" or (self.how.refresh == "auto" and idle)
        shadow = self._began and period > 1 and wanted
        self._refreshing = self._refresh(mine, beside=shadow, due=self.clock + max(1, period // 2))
        if not shadow:
            self._land()

    def _choose_owners(self, step: Step, period: int) -> bool:
        """Agree on the speeds of all workers, and move items if that pays; return whether every machine is idle."""
        measured, self._measured = self._measured, OwnWork()
        self._all_measured.add(measured.cost, measured.busy_s)
        idle = idle_cores() if self.how.refresh == "auto" else 0.0
        own = told(measured, *self._own_time(), idle=idle, samples=float(step.samples), opinion=self.opinion())
        rows = {rank: WorkerRow(*row) for rank, row in self.exchanges.table(own).items()}
        table = agreed(list(rows.values()))
        self.settle(next(iter(rows.values())).opinion)
        self._take_loaded()
        self.bring_up_to_date()
        if self._placed_among != tuple(rows):  # elastic: members have changed
            self._placed_among = tuple(rows)
            self.grid = grid(self._placed_among, len(rows))
            self._move(self._place(table))
        elif self.movable or not self._began:
            items = [one.item for one in self.works]
            other = better(self.placement, self._place(table), items, table, self.members, period)
            if other is not None:
                self._move(other)
        return table.idle

    def _refresh(self, units: list[int], *, beside: bool, due: int = 0) -> Refresh:
        squares, identity = self._squares, self.identity
        # A background refresh reads the statistics while training updates them.
        kept = {unit: self._kept[unit].clone() if self.how.refresh != "now" else self._kept[unit] for unit in units}

        def decompose(those: list[int]) -> Tensor:
            found = [squares[unit] for unit in those]
            return found[0][0].decompose(found, torch.stack([kept[unit] for unit in those]), identity)

        keys = [squares[unit][0].batch_key(squares[unit][1]) for unit in units]
        most = _HOST_NUMBERS if self._on_host else _DEVICE_NUMBERS
        places = batches(keys, [self._basis_sizes[unit] for unit in units], most)
        # Waiting for an accelerator, so that its time is measured, is only worth it before owners are chosen.
        timed = self._on_host or (self.clock + 1) % self.owner_period == 0
        return Refresh(
            [[units[place] for place in batch] for batch in places],
            decompose,
            due=due,
            beside=beside,
            cost=sum(squares[unit][0].item.refresh(squares[unit][1]) for unit in units) if timed else 0.0,
            clock_s=self._waited_s if timed else lambda: 0.0,
            checked=self.keeps_failed,
        )

    def _waited_s(self) -> float:
        """Return this worker's busy time, after all work on an accelerator has ended."""
        if not self._on_host:
            torch.accelerator.synchronize(self._like.device)
        return self._clock_s()

    def _land(self) -> None:
        refresh, self._refreshing = self._refreshing, None
        if refresh is None:
            return
        self._take_up(refresh)
        # Elastic runs: other workers decompose the squares of lost owners, and may be lost in turn.
        while lost := self.exchanges.in_column(self._base_flat, self._base_layout):
            self._take_up(self._orphans(lost))
        self.renew_all()
        if self.clock % self.owner_period == 0:
            self.run.log(f"{self.name}/refresh_s", refresh.seconds)
        self.renewed()

    def _take_up(self, refresh: Refresh) -> None:
        found, failed = refresh.end()
        for unit, basis in found.items():
            self._bases[unit].copy_(basis)
        for unit, why in failed.items():
            name = self._squares[unit][0].item.name
            self.run.log(f"{self.name}/refresh_failed", 1.0)
            warn(f"uneven: {self.name}: {name} keeps its previous basis: {why}")
        self._measured.add(refresh.cost, refresh.busy_s)

    def _orphans(self, lost: tuple[int, ...]) -> Refresh:
        """Refresh the squares of workers lost before they sent their bases, on new owners."""
        orphans = [unit for unit, owner in enumerate(self._owner_of) if owner in lost]
        self._placed_among = tuple(rank for rank in self._placed_among if rank not in lost)
        self.grid, self._began = grid(self._placed_among, len(self._placed_among)), True
        self._move(self._place())
        return self._refresh([unit for unit in orphans if self._owner_of[unit] == self.run.rank], beside=False)

    def renew_all(self) -> None:
        """Put the bases in the buffers into use."""
        for i in self._mine:
            self.works[i].renew([self._bases[unit] for unit in self._units_of[i]])
        self._began = True

    # ── every step ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _precondition(self) -> None:
        began_s = self._clock_s()
        products = []
        for i in self._mine:
            product = self.works[i].apply(self._result_flat[slice(*self._result_layout.spans[i])])
            if product is not None:
                products.append(product)
        if products:
            self._result_flat[self._result_layout.bound(self.run.rank)[1] - 1] = torch.stack(products).sum()
        if self._on_host:  # an accelerator's work has only been queued by then
            cost = sum(self.works[i].item.step for i in self._mine)
            self._measured.add(cost, self._clock_s() - began_s)
            self._measured.steps += 1
        self.exchanges.in_row(self._result_flat, self._result_layout)
        scale = self.scale()
        for work, span in zip(self.works, self._result_layout.spans, strict=True):
            result = self._result_flat[slice(*span)]
            work.write(result, self.bounded(work, result, scale))

    def _check_plan(self, step: Step) -> None:
        if not step.averaged:
            raise ConfigError(
                f"{self.name} needs gradients averaged over all workers in every step, and the policy does not "
                f"average at step {step.clock}: use sync='bsp'"
            )

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _gather(self) -> dict[str, Tensor]:
        """Return the statistics of all workers by item and square; also bases that a checkpoint needs."""
        self._take_loaded()
        if self._replicated:
            found = {self._key(unit): kept.clone() for unit, kept in self._kept.items()}
            bases = self._bases if self._began else {}
            return found | {f"basis {self._key(unit)}": basis.clone() for unit, basis in bases.items()}
        self.bring_up_to_date()
        flat = self._like.new_zeros(self._kept_layout.size)
        for unit, kept in self._kept.items():
            flat[slice(*self._kept_layout.spans[unit])] = kept
        self.exchanges.among_all(flat, self._kept_layout)
        found = {self._key(unit): flat[slice(*span)].clone() for unit, span in enumerate(self._kept_layout.spans)}
        if self.saves_bases:
            layout = Layout.of(self._basis_sizes, self._owner_of, self.members)
            flat = self._like.new_zeros(layout.size)
            for unit in self._kept:
                flat[slice(*layout.spans[unit])] = self._bases[unit]
            self.exchanges.among_all(flat, layout)
            found |= {f"basis {self._key(unit)}": flat[slice(*span)] for unit, span in enumerate(layout.spans)}
        return found

    def _key(self, unit: int) -> str:
        work, j = self._squares[unit]
        return f"{work.item.name}/{j}"

    def state_dict(self) -> dict[str, Any]:
        """Return clock and statistics.

        Raises:
            CheckpointError: other workers keep a part, and this is outside of ``session.evaluation_model()``.
        """
        if not self.works:
            return {}
        if self._gathered is None and len(self.members) > 1 and not self._replicated:
            raise CheckpointError(
                f"{self.name} keeps each factor on one worker: save inside `with session.evaluation_model():` on every "
                "worker"
            )
        return {"clock": self.clock, **(self._gathered if self._gathered is not None else self._gather())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state, with any number of workers; the next step recomputes bases.

        Raises:
            CheckpointError: ``state`` is that of another model.
        """
        if "clock" not in state:
            return
        names = {self._key(unit): size for unit, size in enumerate(self._sizes)}
        self._loaded = {key: self.saved(state, key, size) for key, size in names.items()}
        self.clock, self._began = int(state["clock"]), False
        if self._replicated:
            self._placed_among = ()
            self._take_loaded()
            if all(f"basis {key}" in state for key in names):
                self._take_bases(state)

    def _take_bases(self, state: dict[str, Any]) -> None:
        for unit, view in self._bases.items():
            view.copy_(self.saved(state, f"basis {self._key(unit)}", view.numel()))
        self.renew_all()

    def saved(self, state: dict[str, Any], key: str, size: int) -> Tensor:
        """Return a tensor of ``size`` numbers from a state; raise :class:`CheckpointError` without it."""
        if key not in state or state[key].numel() != size:
            raise CheckpointError(f"{self.name}: the state has no {key!r} of {size} numbers: another model")
        found: Tensor = state[key]
        return found

    def _take_loaded(self) -> None:
        if self._loaded is not None:
            for unit in self._kept:
                self._kept[unit] = self._loaded[self._key(unit)].to(self._like).clone()
            self._loaded = None
