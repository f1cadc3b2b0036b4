"""What the two engines are compared on: members of which two can train at once, and one that needs both devices."""

from __future__ import annotations

from functools import partial

import fleet_members as members
import uneven.fleet as fleet

EPOCHS = 2

RATES = {"pair": [0.0, 1000.0], "small": [500.0], "wide": [490.0], "late-a": [100.0], "late-b": [99.0]}
"""The fastest are taken first: the pair on two devices, then two at a time. A pass is an epoch of each."""


def asked() -> fleet.Ensemble:
    """All but the pair draw for their dropout."""
    given = {name: partial(members.make, 8, 32) for name in RATES} | {"pair": members.plain}
    return members.ensemble(EPOCHS, members=given)


def options() -> fleet.Options:
    return fleet.Options(rates=RATES, balance="even", buffer=256, chunk=32, preprocessors=1)
