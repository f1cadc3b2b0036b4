"""Lines: the door to other workers for whatever wants to exchange something with them.

A line has a name and a process group of its own, so what passes on one never meets what passes on another. Waiting,
the roll call of who is missing, time-outs and bytes are seen to here, once.
"""

from uneven.run.lines.base import Handle, Line, Lines
from uneven.run.lines.groups import GroupLines
from uneven.run.lines.threads import ThreadLines
from uneven.run.lines.traffic import Traffic

__all__ = ["GroupLines", "Handle", "Line", "Lines", "ThreadLines", "Traffic"]
