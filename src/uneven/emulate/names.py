"""Names and addresses of what an emulation makes."""

from __future__ import annotations

import ipaddress
import re
import secrets

PREFIX = "uneven-"
INTERFACE = "eth0"
"""A node's link, as the node sees it."""

_FIRST = ipaddress.IPv4Address("10.77.0.0")
PREFIX_LENGTH = 16
_ID = re.compile(r"[0-9a-f]{8}")


def new_id() -> str:
    """A name for one emulation that no other one has."""
    return secrets.token_hex(4)


def is_id(text: str) -> bool:
    """Whether :func:`new_id` could have made it."""
    return _ID.fullmatch(text) is not None


def group(run: str) -> str:
    """The emulation's control group, with one group inside for each node."""
    return PREFIX + run


def node_group(index: int) -> str:
    """A node's control group inside the emulation's."""
    return f"node{index}"


def port(index: int) -> str:
    """The switch's end of a node's link."""
    return f"port{index}"


def address(index: int) -> str:
    """A node's address. Every emulation has a network of its own, so all of them use the same ones."""
    return str(_FIRST + index + 1)
