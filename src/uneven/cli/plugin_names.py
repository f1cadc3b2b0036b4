"""Lists of names in help texts, made when help is printed, because they need a search for installed plug-ins."""

from __future__ import annotations

import importlib
from typing import Any

from typer.core import TyperCommand

from uneven.errors import ConfigError

BALANCERS = "{balancers}"
POLICIES = "{policies}"
PREDICTORS = "{predictors}"

_WHERE = {
    BALANCERS: ("uneven.policy.balance", "balancers"),
    POLICIES: ("uneven.policy.sync", "policies"),
    PREDICTORS: ("uneven.policy.predict", "predictors"),
}


class Naming(TyperCommand):
    """A command whose help lists plug-ins by name in the place of :data:`BALANCERS` and the like."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameter: Any
        for parameter in self.params:
            for place, (module, name) in _WHERE.items():
                if place in (getattr(parameter, "help", None) or ""):
                    names = _names(getattr(importlib.import_module(module), name))
                    parameter.help = parameter.help.replace(place, names)
        super().format_options(ctx, formatter)


def _names(registry: Any) -> str:
    try:
        return ", ".join(registry.listed())
    except ConfigError as error:  # never fail while printing help
        return f"{', '.join(registry)} (and {error})"
