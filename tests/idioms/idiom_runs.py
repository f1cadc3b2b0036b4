"""Runs the idioms, all cells of one policy and one kind of shares in one start of ranks, and judges what came out."""

from __future__ import annotations

import gc
import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from types import TracebackType
from typing import Any, Self

import idioms_data  # noqa: F401  # first, for it forks readers
import idioms_gradients  # noqa: F401  # each enters its idioms into the table
import idioms_kept  # noqa: F401
import idioms_loops  # noqa: F401
import idioms_models  # noqa: F401
import idioms_optimizers  # noqa: F401
import idioms_parts  # noqa: F401
import idioms_state  # noqa: F401
import idioms_wrapped  # noqa: F401
import torch
import torch.distributed as dist
from idiom_base import IDIOMS, Agrees, Differs, Either, Equal, Expect, Idiom, N, Plain, Refused, Unfit, Watched, seed
from torch import nn
from torch.distributed import distributed_c10d as c10d

from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView
from uneven.testing.ranks import RankContext, ranks, run_ranks
from uneven.testing.staging import staging_forced

WORKERS = {"even": 3, "static": 4, "moving": 3}
"""By shares. Twenty samples are 7, 7 and 6 for three, and the last part of two leaves nothing to one of them."""

WAIT_S = 30.0
"""For somebody who does not come."""

POLICIES = {"bsp": "bsp", "local": "local:every=1", "shadow:ma": "shadow:ma", "asp": "asp"}
SHARES = ("even", "static", "moving")
KINDS = {"bsp": SHARES, "local": ("even", "moving"), "shadow:ma": ("even",), "asp": ("even",)}
RUN = [(policy, shares) for policy, kinds in KINDS.items() for shares in kinds]
"""Under ``local`` shares that stay show nothing that moving ones do not. Where each worker takes samples at its own
pace there are no other shares; see ``test_idioms.py``."""

STAGED = [("bsp", "moving"), ("local", "moving"), ("asp", "even")]
"""The cells that are also run with copies in host memory, as a GPU's tensors need them."""

COPIED = ", with copies in host memory"
"""At the end of an idiom's name."""


class Moving(Balancer):
    """Another very unequal split after every report; by the first one, a worker has a single sample."""

    def split(self, view: BalanceView) -> Split:
        weights = [1.0 + (7 * view.iteration + 4 * rank) % 11 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


def balance(shares: str) -> Any:
    return {"even": "even", "static": "static:shares=4/3/2/1", "moving": Moving()}[shares]


def flat(trained: Any) -> list[float]:
    """All parameters of a model, or of several."""
    models = [trained] if isinstance(trained, nn.Module) else trained
    return torch.cat([one.detach().reshape(-1).double() for model in models for one in model.parameters()]).tolist()


class Told:
    """Whatever is raised inside is kept as text and goes no further: the ranks go on with the next cell."""

    def __init__(self) -> None:
        self.error = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        if not self.error:
            self.error = f"{type(error).__name__}: {error}"
        return True


class Meeting:
    """The process group of a cell: formed once, and once more after each idiom that fails on any rank.

    Attributes:
        formed: how often.
    """

    def __init__(self, me: RankContext) -> None:
        self._me = me
        self._store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
        self.formed = self._idioms = 0

    def begin(self) -> None:
        """Form the group if there is none."""
        self._idioms += 1
        if not dist.is_initialized():
            self.formed += 1
            rank, size, limit = self._me.rank, self._me.size, timedelta(seconds=WAIT_S)
            store = dist.PrefixStore(f"group/{self.formed}", self._store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)

    def end(self, failed: bool) -> None:
        """Wait for the idiom to end on all ranks. They keep the group if it did not fail on any of them.

        A rank that failed leaves the group first, because others may wait for it in an exchange.
        """
        here, failures = (dist.PrefixStore(f"{word}/{self._idioms}", self._store) for word in ("here", "failures"))
        if failed:
            failures.add("all", 1)
            self._leave()
        here.set(str(self._me.rank), "")
        # Others may wait for their time-out, and then once more as they close the session.
        here.wait([str(rank) for rank in range(self._me.size)], timedelta(seconds=4 * WAIT_S))
        if failures.check(["all"]):
            self._leave()
        for group in [one for one in c10d._world.pg_map if one is not dist.group.WORLD]:
            dist.destroy_process_group(group)  # as of a device mesh, which nothing else ends

    def _leave(self) -> None:
        with Told():
            if dist.is_initialized():
                dist.destroy_process_group()


def one_cell(name: str, policy: str, shares: str, meeting: Meeting) -> dict[str, Any]:
    idiom, staged = of_name(name), name.endswith(COPIED)
    meeting.begin()
    said, found, session = Told(), {"error": "", "values": [], "taken": []}, None
    with said, prepared(idiom) as warned, staging_forced() if staged else nullcontext():
        settings = {"sync": POLICIES[policy], "balance": balance(shares), "overhead_budget": 0.9, "timeout_s": WAIT_S}
        session = Watched(**{**settings, **idiom.options})
        trained = idiom.body(session)
        session = session.successor or session
        with session.evaluation_model():
            found["values"] = flat(trained)
            found["own"] = len(flat(trained if isinstance(trained, nn.Module) else trained[0]))
        found["taken"] = session.taken()
        words = ["docs/how-to/losses.md", *filter(None, [getattr(idiom.expect, "warns", "")])]
        found["warned"] = "; ".join(one for one in map(str, warned) if any(word in one for word in words))
    with said:
        if session is not None:
            (session.successor or session).close()
    found["error"] = said.error
    del session
    if said.error:
        gc.collect()  # or a cycle of torch's keeps the connections, and the others wait for their time-out
    meeting.end(failed=bool(said.error))
    return found


@contextmanager
def prepared(idiom: Idiom) -> Iterator[list[Any]]:
    """The same seed everywhere, and the idiom's kind of numbers; warnings are kept, not shown."""
    seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(idiom.dtype)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield warned
    finally:
        torch.set_default_dtype(before)


@ranks(4, join=False)
def cells(me: RankContext, policy: str, shares: str, names: list[str]) -> dict[str, Any]:
    """On every rank, what came of each idiom."""
    gc.freeze()  # what has been imported stays
    meeting = Meeting(me)
    return {name: one_cell(name, policy, shares, meeting) for name in names}


def of_name(name: str) -> Idiom:
    return IDIOMS[name.removesuffix(COPIED)]


def in_one_process(idiom: Idiom) -> list[float]:
    with prepared(idiom):
        return flat(IDIOMS[idiom.like or idiom.name].body(Plain()))


@ranks(1, join=False)
def references(me: RankContext, names: list[str]) -> dict[str, list[float]]:
    return {name: in_one_process(IDIOMS[name]) for name in names}


@cache
def reference() -> dict[str, list[float]]:
    """What one process trains, for each idiom that is ever to be equal to it or different from it."""
    names = [name for name in IDIOMS if any(needs_reference(IDIOMS[name], *cell) for cell in RUN)]
    return run_ranks(1, references.rank_body, names, join=False)[0]  # type: ignore[attr-defined]


def needs_reference(idiom: Idiom, policy: str, shares: str) -> bool:
    return not idiom.shown and isinstance(expected(idiom, policy, shares), Equal | Either | Differs)


def expected(idiom: Idiom, policy: str, shares: str) -> Expect:
    """What is to come of an idiom under this policy with these shares."""
    for key in (f"{policy} {shares}", policy):
        if key in idiom.by:
            return idiom.by[key]
    if policy == "bsp" or not isinstance(idiom.expect, Equal):
        return idiom.expect
    if policy == "local" and idiom.linear:
        return idiom.expect
    return Agrees("replicas take steps of their own")


def is_run(idiom: Idiom, policy: str, shares: str) -> bool:
    """What is refused whatever the shares is tried with one kind of them."""
    outcomes = {kind: expected(idiom, policy, kind) for one, kind in RUN if one == policy}
    once = all(isinstance(one, Refused) for one in outcomes.values())
    tried = list(outcomes)[-1] if once else shares
    return not idiom.shown and not isinstance(outcomes[shares], Unfit) and shares == tried


def verdict(idiom: Idiom, policy: str, shares: str, told: list[dict[str, Any]], alone: list[float]) -> str:
    """What is wrong with a cell; empty where nothing is.

    Args:
        told: what came of it, by rank.
        alone: the weights of one process.
    """
    expect, errors = expected(idiom, policy, shares), errors_of(told)
    if isinstance(expect, Either):
        expect = Refused(expect.words) if errors else expect.otherwise
    if isinstance(expect, Refused):
        well = [rank for rank, one in enumerate(told) if not one["error"]]
        if well:
            return f"not refused on ranks {well}{'; elsewhere: ' if errors else ''}{'; '.join(errors)}"
        fits = any(re.search(expect.words, error) for error in errors)
        return "" if fits else f"refused in other words than {expect.words!r}: {'; '.join(errors)}"
    if errors:
        return "; ".join(errors)
    if idiom.whole and (why := not_once(told, policy)):
        return why
    warned = "; ".join(filter(None, (one.get("warned") for one in told)))
    wanted = expect.warns if isinstance(expect, Differs | Equal) else ""
    if wanted not in warned or bool(wanted) < bool(warned):
        return f"warned in other words than {wanted!r}: {warned!r}"
    if isinstance(expect, Agrees):
        if any(not math.isfinite(value) for one in told for value in one["values"]):
            return "not finite"
        evaluated = [one["values"][: one["own"]] for one in told]
        return "" if all(one == evaluated[0] for one in evaluated) else "ranks evaluate different models"
    off = max(distance(one["values"], alone) for one in told)
    if isinstance(expect, Differs):
        return "" if off > 1e-6 else "equal to one process after all: say so in the table and in docs/limits.md"
    return "" if off <= expect.tolerance else f"off by {off:.1e}"


def errors_of(told: list[dict[str, Any]]) -> list[str]:
    """Each error with the ranks that raised it."""
    by_text: dict[str, list[int]] = {}
    for rank, one in enumerate(told):
        if one["error"]:
            by_text.setdefault(one["error"].strip(), []).append(rank)
    return [f"ranks {ranks}: {text}" for text, ranks in by_text.items()]


def distance(ours: list[float], theirs: list[float]) -> float:
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return math.inf if any(not gap < math.inf for gap in gaps) else max(gaps)


def not_once(told: list[dict[str, Any]], policy: str) -> str:
    """Which samples were not used just once in each epoch."""
    epochs: dict[int, list[int]] = {}
    for one in told:
        for epoch, first, end in one["taken"]:
            epochs.setdefault(epoch, []).extend(range(first, end))
    for epoch, positions in epochs.items():
        if sorted(positions) != list(range(N)):
            twice, never = len(positions) - len(set(positions)), N - len(set(positions))
            return f"epoch {epoch}: {twice} samples twice, {never} never"
    return "" if epochs else "no sample was used"


def play(policy: str, shares: str, names: list[str] | None = None, timeout_s: float = 240) -> dict[str, str]:
    """Run all idioms, or these; what is wrong with each."""
    chosen = [name for name in (IDIOMS if names is None else names) if is_run(of_name(name), policy, shares)]
    body = cells.rank_body  # type: ignore[attr-defined]
    table = run_ranks(WORKERS[shares], body, policy, shares, chosen, join=False, fresh=True, timeout_s=timeout_s)
    alone = reference()
    return {
        name: verdict(of_name(name), policy, shares, [row[name] for row in table], alone.get(of_name(name).name, []))
        for name in chosen
    }
