"""Gathers the facts that ``uneven doctor`` speaks of. Looks and tries, changes nothing, judges nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import pynvml

import uneven
from uneven.cli.findings import DataFolder, Gpu, Interface, MachineFacts, TorchFacts
from uneven.cli.limits import Limit, control_group_limit
from uneven.emulate import probe
from uneven.jobs.processes import HeldProcess

TRIAL_LIMIT_S = 60.0
LOOKUP_LIMIT_S = 3.0
OPTIONAL = ("ray", "tensorboard")


def gather(environment: Mapping[str, str] = os.environ) -> MachineFacts:
    """Everything about this machine and this Python; takes some seconds, as torch is really tried."""
    limit = control_group_limit() if sys.platform == "linux" else Limit()
    gpus, gpu_error = read_gpus()
    memory = psutil.virtual_memory()
    cores = os.cpu_count() or 1
    isolation_error = probe.why_not_isolated()
    able = probe.able(isolated=isolation_error)
    interface = choose_interface(environment.get("GLOO_SOCKET_IFNAME", ""))
    return MachineFacts(
        system=platform.system(),
        python=sys.version_info[:3],
        uneven=uneven.__version__,
        cores=cores,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        quota_cores=limit.cores,
        memory_bytes=memory.total,
        available_bytes=memory.available,
        memory_limit_bytes=limit.memory_bytes,
        shared_memory_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        gpus=gpus,
        gpu_error=gpu_error,
        torch=try_torch(environment),
        interface=interface,
        lookup_s=time_lookup(interface.address),
        data=look_at(environment["UNEVEN_DATA"]) if environment.get("UNEVEN_DATA") else None,
        root=hasattr(os, "geteuid") and os.geteuid() == 0,
        throttle_error=try_throttling(),
        isolation_error=isolation_error,
        bandwidth_error=able.links,
        latency_error=able.latency,
        netem_error="" if isolation_error else probe.why_no_netem(),
        packages={name: installed_version(name) for name in OPTIONAL},
    )


def try_torch(environment: Mapping[str, str] = os.environ, limit_s: float = TRIAL_LIMIT_S) -> TorchFacts:
    """Run :mod:`uneven.cli.trial` and read what it says; it is ended, with its child, at the time limit."""
    command = [sys.executable, "-P", "-m", "uneven.cli.trial"]
    with ExitStack() as stack:
        try:
            out, complaints = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
        except OSError as no_room:
            return TorchFacts(error=f"no temporary file can be made: {no_room.strerror or no_room}")
        trial = subprocess.Popen(command, stdout=out, stderr=complaints, env=dict(environment), start_new_session=True)
        error = ""
        try:
            if trial.wait(limit_s) != 0:
                error = f"the trial ended with exit code {trial.returncode}"
        except subprocess.TimeoutExpired:
            error = f"no answer within {limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # the usual case: both have ended
                os.killpg(trial.pid, signal.SIGKILL)
            trial.wait()
        out.seek(0)
        complaints.seek(0)
        return torch_facts(out.read(), complaints.read(), error)


def torch_facts(said: str, complaints: str, error: str) -> TorchFacts:
    """Put together what the trial printed before it ended."""
    known = {field.name for field in fields(TorchFacts)}
    values: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith("{"):
            values |= {key: value for key, value in json.loads(line).items() if key in known}
    last = [line.strip() for line in complaints.splitlines() if line.strip()][-1:]
    if error and last:
        error = f"{error}: {last[0]}"
    return TorchFacts(**values, error=error)


def read_gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that NVML knows, or why it knows none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return (), f"NVML: {error}"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_gpu(handle) for handle in handles), ""
    except pynvml.NVMLError as error:
        return (), f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: Any) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(name=pynvml.nvmlDeviceGetName(handle), memory_bytes=memory.total)


def choose_interface(forced: str) -> Interface:
    """The interface that gloo takes: the one that is named, else where the host name leads, else loopback.

    Args:
        forced: value of GLOO_SOCKET_IFNAME, a comma-separated list of names; "" if it is not set.
    """
    interfaces = {
        name: [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        for name, entries in psutil.net_if_addrs().items()
    }
    for name in filter(None, forced.split(",")):
        if name not in interfaces:
            return Interface(name=name, address="", forced=True, exists=False)
    if forced:
        name = forced.split(",")[0]
        return Interface(name=forced, address=(interfaces[name] or ["no address"])[0], forced=True)
    address = _own_address()
    holders = [name for name, addresses in interfaces.items() if address in addresses]
    return Interface(name=holders[0] if holders else "", address=address, forced=False)


def _own_address() -> str:
    try:
        candidates = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return "127.0.0.1"
    for family, kind, protocol, _, address in candidates:
        with socket.socket(family, kind, protocol) as trial, contextlib.suppress(OSError):
            trial.bind(address)
            return str(address[0])
    return "127.0.0.1"


def time_lookup(address: str, limit_s: float = LOOKUP_LIMIT_S) -> float:
    """Seconds until it is known what an address is called, in the form in which torch's store asks, or that it has
    no name; ``limit_s`` if nobody knows by then."""
    asked = address if ":" in address else f"::ffff:{address or '127.0.0.1'}"

    def look_up() -> None:
        with contextlib.suppress(OSError):  # a name server that cannot be reached
            socket.getnameinfo((asked, 0), 0)

    start_s = time.monotonic()
    thread = threading.Thread(target=look_up, name="uneven-look-up", daemon=True)  # left behind where it hangs
    thread.start()
    thread.join(limit_s)
    return time.monotonic() - start_s


def look_at(path: str) -> DataFolder:
    """What of its list of files the data folder holds; contents are not compared."""
    folder = Path(path).expanduser()
    listing = folder / "SHA256SUMS"
    lines = listing.read_text().splitlines() if listing.is_file() else []
    names = [line.split(maxsplit=1)[1] for line in lines]
    return DataFolder(
        path=path,
        exists=folder.is_dir(),
        listed=len(names),
        absent=tuple(name for name in names if not (folder / name).is_file()),
        fashion_mnist=(folder / "fashion_mnist" / "fashion_mnist.npz").is_file(),
    )


def try_throttling(limit_s: float = 5.0) -> str:
    """Stop a child, continue it and read its CPU time; "" if that worked, else what did not."""
    if not hasattr(signal, "SIGSTOP"):
        return f"{platform.system()} has no SIGSTOP"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    try:
        return _stop_and_continue(child.pid, limit_s)
    except (OSError, psutil.Error) as error:
        return f"a child cannot be controlled: {error}"
    finally:
        child.kill()  # also ends a stopped process
        child.wait()


def _stop_and_continue(pid: int, limit_s: float) -> str:
    state, controlled = psutil.Process(pid), HeldProcess(pid)
    try:
        for what, order, stopped in (("stopped", signal.SIGSTOP, True), ("continued", signal.SIGCONT, False)):
            controlled.send(order)
            deadline_s = time.monotonic() + limit_s
            while (state.status() == psutil.STATUS_STOPPED) is not stopped:
                if time.monotonic() > deadline_s:
                    return f"a child could not be {what} within {limit_s:g} s"
                time.sleep(0.005)
        return "a child's CPU time cannot be read" if controlled.cpu_s() is None else ""
    finally:
        controlled.close()


def installed_version(package: str) -> str:
    """Version of an installed package, or ""."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
