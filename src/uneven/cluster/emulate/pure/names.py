"""Names and addresses of the parts of an emulation."""

import ipaddress
import re

PREFIX = "uneven-"
INTERFACE = "eth0"  # a node's link, as the node sees it
SWITCH = "switch"  # the bridge of the nodes of a site

_FIRST = ipaddress.IPv4Address("10.77.0.0")
_LAST = ipaddress.IPv4Address("10.77.255.255")
PREFIX_LENGTH = 16
_ID = re.compile(r"[0-9a-f]{8}")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def group(run: str) -> str:
    return PREFIX + run


def node_group(index: int) -> str:
    return f"node{index}"


def port(index: int) -> str:
    return f"port{index}"


def line(site: int) -> str:
    return f"line{site}"


def address(index: int) -> str:
    """Return a node's address. Every emulation has a private network, so all use the same addresses."""
    return str(_FIRST + index + 1)


def gateway(site: int) -> str:
    return str(_LAST - 1 - site)
