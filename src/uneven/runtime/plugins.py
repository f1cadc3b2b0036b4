"""The search for plug-ins of other installed distributions, by entry points.

A distribution names them in its ``pyproject.toml``, one table for each kind::

    [project.entry-points."uneven.balancers"]
    mine = "my_package:MyBalancer"

Then ``uneven run --balance mine`` and ``Session(balance="mine")`` find it, in the launcher and in each worker, if it is
installed for their Python. Plug-ins are imported on demand.
"""

from uneven.policy.core.registry import Outside


def find(group: str) -> list[Outside]:
    """Return the installed plug-ins of this group, in no particular order; each distribution counts once."""
    from importlib.metadata import entry_points  # its import takes longer than that of `uneven`

    return [
        Outside(
            name=one.name,
            distribution=f"{one.dist.name} {one.dist.version}" if one.dist is not None else "an unknown distribution",
            entry=f"{one.name} = {one.value}",
            load=one.load,
        )
        for one in entry_points(group=group)
    ]
