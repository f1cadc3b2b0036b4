"""The command ``uneven init``: write a settings file."""

import json
import sys
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

import typer

from uneven.cli import options
from uneven.errors import ConfigError, access
from uneven.policy.balance import balancers
from uneven.policy.core import run_config
from uneven.policy.core.registry import Registry
from uneven.policy.sync import policies
from uneven.runtime.rundir import FILE

_NAMES: dict[str, Registry[Any]] = {"balance": balancers, "sync": policies}
_HEAD = """\
# Settings of the runs that start in this folder. Options of the command line override them; the script overrides both.
# A line that starts with "# " and a key shows its default.
"""


def init(
    config_file: options.ConfigFile = None,
    balance: options.Balance = None,
    sync: options.Sync = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    threads: options.Threads = None,
) -> None:
    """Write a settings file with all keys, their meanings and their defaults.

    Without an option of the training, a terminal asks for balancer, policy and seed. The command replaces no file.

    \b
    Examples:
      uneven init
      uneven init --balance lb-bsp --sync local:every=8 --seed 1
      uneven init --config slow.toml --sync diloco
    """
    path = config_file or Path(FILE)
    with access(f"look for {path}"):
        exists = path.exists()
    if exists:
        raise ConfigError(f"{path} exists: edit it, or name another file with --config")
    given = {"balance": balance, "sync": sync, "seed": seed, "timeout_s": timeout, "threads": threads}
    values = {key: value for key, value in given.items() if value is not None}
    if not values and sys.stdin.isatty():
        values = _asked()
    text = settings_file(values)
    with access(f"write {path}"):
        path.write_text(text, encoding="utf-8")
    where = "" if path == Path(FILE) else f" --config {path}"
    print(f"wrote {path}; next: uneven run{where} SCRIPT")


def settings_file(values: dict[str, Any]) -> str:
    """Return the text of a settings file with these values. Raises ConfigError for a wrong value, UnknownNameError for
    an unknown plug-in."""
    for key, registry in _NAMES.items():
        if key in values:
            registry.resolve(values[key])
    schema = resources.files("uneven") / "schemas" / "uneven.schema.json"
    keys = json.loads(schema.read_text(encoding="utf-8"))["properties"]["run"]["properties"]
    lines = [_HEAD, "[run]"]
    for key, about in keys.items():
        text = f"{key}: {about['description']}."
        if key in _NAMES:
            text += f" Names: {', '.join(_NAMES[key].listed())}."
        _, _, setting = run_config.to_toml({key: values.get(key, about["default"])}).partition("\n")
        lines += ["", *textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="#   ")]
        lines.append(setting.strip() if key in values else f"# {setting.strip()}")
    return "\n".join([*lines, ""])


def _asked() -> dict[str, Any]:
    defaults = run_config.RunConfig()
    return {
        "balance": typer.prompt(f"Balancer ({', '.join(balancers)})", default=defaults.balance, err=True),
        "sync": typer.prompt(f"Sync policy ({', '.join(policies)})", default=defaults.sync, err=True),
        "seed": typer.prompt("Seed of the sample order", default=defaults.seed, type=int, err=True),
    }
