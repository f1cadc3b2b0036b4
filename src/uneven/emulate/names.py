"""Names and addresses of what an emulation makes. Pure."""

from __future__ import annotations

import ipaddress
import re

PREFIX = "uneven-"
INTERFACE = "eth0"
"""A node's link, as the node sees it."""

SWITCH = "switch"
"""The bridge on which the nodes of a site hang."""

_FIRST = ipaddress.IPv4Address("10.77.0.0")
_LAST = ipaddress.IPv4Address("10.77.255.255")
PREFIX_LENGTH = 16
_ID = re.compile(r"[0-9a-f]{8}")


def is_id(text: str) -> bool:
    """Whether it can be the name of an emulation."""
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


def line(site: int) -> str:
    """A switch's end of the line to another site."""
    return f"line{site}"


def address(index: int) -> str:
    """A node's address. Every emulation has a network of its own, so all of them use the same ones."""
    return str(_FIRST + index + 1)


def gateway(site: int) -> str:
    """A site's switch, where packets for other sites go."""
    return str(_LAST - 1 - site)
