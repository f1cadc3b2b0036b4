"""Supervised processes: started, heard, told apart by how they end, and never left behind.

::

    command.py    a program ───────────────┐                 ┌── ending.py   ended, failed, killed, hung or lost
    call.py       a function, with a line ─┼──► a Process ──►┤
    ray.py        the same on a cluster ───┘       │         └── keep.py     started again, under a rule
                                                   ▼
                  events.py: one loop hears ends, messages, signs of life and whatever else can be read

    ray_lines.py  programs that a Ray cluster has room for, again when a machine is lost
    place.py      where functions run, and on which devices: local.py, ray.py
    bound.py      a program ends with the one that started it, however that ends
"""

from uneven.jobs.command import Command, end_all
from uneven.jobs.ending import Ending, How
from uneven.jobs.events import Events
from uneven.jobs.keep import Kept, Restarts
from uneven.jobs.stop import Stop

__all__ = ["Command", "Ending", "Events", "How", "Kept", "Restarts", "Stop", "end_all"]
