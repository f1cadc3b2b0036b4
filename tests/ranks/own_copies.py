"""A model that a file is read for where ``uneven`` is not installed."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn


class Custom(nn.Sequential):
    """Copies itself in a way of its own, as parametrized modules do."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Custom:
        made = Custom()
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made
