"""Synchronization policies as objects: ``Session(sync=uneven.sync.Shadow(uneven.sync.MA(), load=0.2))``.

The same policy by its name is ``sync="shadow:load=0.2:ma"``.
"""

from uneven.policy.sync import *  # noqa: F403
from uneven.policy.sync import __all__ as __all__
