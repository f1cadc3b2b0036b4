"""A check of the numbers in a message, before anything changes."""

from __future__ import annotations

from uneven.runtime.parameter_server.pure.wire import CHANGING, Kind, Message, Refusal, Refused

MOST_STEPS = 1 << 48  # the largest valid clock


def check_numbers(m: Message, members: int) -> None:
    """Check the numbers of a message to a shard with ``members`` members. Raises Refused with the reason."""
    if max(m.clock, m.version, m.extra) > MOST_STEPS:
        raise Refused(Refusal.STEP)
    if m.value < 0:
        raise Refused(Refusal.SCALE)
    if m.kind not in CHANGING:
        return
    if not m.sequence:
        raise Refused(Refusal.SEQUENCE)
    if m.kind is Kind.MOVEMENT and not (0 <= m.momentum < 1 and m.grace >= 0):
        raise Refused(Refusal.SCALE)
    if m.kind is not Kind.GRADIENT and not 0 < m.value <= (1 if m.kind is Kind.EXCHANGE else m.value):
        raise Refused(Refusal.SCALE)
    if m.kind in (Kind.GRADIENT, Kind.MOVEMENT) and not 1 <= m.extra <= members:
        raise Refused(Refusal.QUORUM)
