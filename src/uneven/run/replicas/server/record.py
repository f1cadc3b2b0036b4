"""The journal's record of an exchange with the parameter server."""

from __future__ import annotations

import time

import numpy as np

from uneven.policy.control.ledger import Order
from uneven.policy.core.actions import Moment
from uneven.policy.core.records import ExchangeRecord
from uneven.run.replicas.server.client_copy import Values


def record_of(order: Order, rank: int, moved: Values, late: int, sent_bytes: int, began_s: float) -> ExchangeRecord:
    """Return the record of a finished exchange.

    Args:
        moved: the change of the replica's parameters, shape (trained,).
        late: steps taken while it was under way, or updates of other workers in between.
        began_s: from ``time.perf_counter``.
    """
    exchange = order.exchange
    apart = float(np.sqrt(np.mean(np.square(moved)))) if len(moved) else 0.0
    return ExchangeRecord(
        rank=rank,
        iteration=order.iteration,
        at_s=time.time(),
        moment=(Moment.STEP if exchange.moment is Moment.BACKWARD else exchange.moment).value,
        members=len(exchange.members),
        samples=order.merges.own,
        gap=order.merges.gap,
        late=late,
        took_s=time.perf_counter() - began_s,
        sent_bytes=sent_bytes,
        distance=exchange.merge.distance(apart),
        dropped=order.dropped,
        threads=order.threads,
    )
