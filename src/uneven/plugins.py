"""Finds plug-ins that other installed distributions bring, by their entry points.

A distribution names them in its ``pyproject.toml``, one table for each kind::

    [project.entry-points."uneven.balancers"]
    mine = "my_package:MyBalancer"

and from then on ``uneven run --balance mine`` and ``Session(balance="mine")`` find it, in the launcher and in each
worker, as long as it is installed for the Python that runs them. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from uneven.registry import Outside


def find(group: str) -> list[Outside]:
    """What is installed now under this group, in no particular order; each distribution counts once."""
    from importlib.metadata import entry_points  # it takes longer to import than all of this package's front door

    return [
        Outside(
            name=one.name,
            distribution=f"{one.dist.name} {one.dist.version}" if one.dist is not None else "an unknown distribution",
            entry=f"{one.name} = {one.value}",
            load=one.load,
        )
        for one in entry_points(group=group)
    ]
