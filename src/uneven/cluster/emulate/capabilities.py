"""Tests of the emulation features that this machine supports."""

import os
import shutil
from functools import partial

from uneven.cluster.emulate import cgroup, netns
from uneven.cluster.emulate.cgroup import Trees
from uneven.cluster.emulate.pure import names
from uneven.cluster.emulate.pure.requirements import Able
from uneven.cluster.emulate.tap import DOOR, open_tap
from uneven.errors import LaunchError
from uneven.runtime.system import LINUX, NAME

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_NETEM = "qdisc replace dev lo root netem delay 1ms"
_BUCKET = "qdisc replace dev lo root tbf rate 1mbit burst 4000 limit 100000"


def why_not_isolated() -> str:
    """Return why nodes cannot have their own namespaces and control groups; "" if they can."""
    if not LINUX:
        return f"only Linux has namespaces and control groups, and this is {NAME}"
    if os.geteuid() != 0:
        return "only root may make namespaces and control groups"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed (on Debian and Ubuntu the package is {package})"
    found = cgroup.find()
    if isinstance(found, str):
        return found
    if not os.access(found.cpu, os.W_OK):
        return f"{found.cpu} cannot be written"
    try:
        os.close(netns.new_namespace())
    except OSError as error:
        return f"no network namespace can be made ({error.strerror})"
    return ""


def trees() -> Trees:
    found = cgroup.find()
    assert isinstance(found, Trees)
    return found


def why_no_discipline(line: str) -> str:
    """Return why ``tc`` cannot set something on an interface, tested in a new namespace; "" if it can."""
    try:
        namespace = netns.new_namespace()
    except OSError as error:
        return f"no network namespace can be made ({error.strerror})"
    try:
        netns.run("tc", namespace, [line])
    except LaunchError as error:
        return str(error).partition("(")[2].splitlines()[0].removeprefix("Error: ").rstrip(".")
    except FileNotFoundError as error:
        return f"`{error.filename}` is not installed"
    finally:
        os.close(namespace)
    return ""


def why_no_netem() -> str:
    problem = why_no_discipline(_NETEM)
    return f"this kernel has no netem, which delays packets ({problem})" if problem else ""


def why_no_latency() -> str:
    """Return the reason why packets cannot be delayed here; "" if the kernel or a process can."""
    no_netem = why_no_netem()
    if not no_netem:
        return ""
    try:
        namespace = netns.new_namespace()
    except OSError as error:
        return f"no network namespace can be made ({error.strerror})"
    try:
        os.close(netns.inside(namespace, partial(open_tap, names.INTERFACE)))
    except OSError as error:
        return f"{no_netem}, and no process can do it instead ({DOOR}: {error.strerror})"
    finally:
        os.close(namespace)
    return ""


def why_no_bandwidth() -> str:
    problem = why_no_discipline(_BUCKET)
    return f"this kernel has no tbf, which limits bandwidth ({problem})" if problem else ""


def able(*, isolated: str) -> Able:
    """Return the features that can be emulated here; ``isolated`` is why nodes cannot be isolated, or ""."""
    if isolated:
        return Able(load=isolated, memory=isolated, links=isolated, latency=isolated)
    memory = "" if trees().memory is not None else "no control group with the memory controller is mounted"
    return Able(memory=memory, links=why_no_bandwidth(), latency=why_no_latency())
