"""From facts about a machine to what they mean for a user. Pure: no torch, no thread, no socket, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from uneven.errors import install_hint

MIB = 1024**2
GIB = 1024**3

LOOKUP_S = 0.5
"""Our choice. Workers connect a few times each; a name server that answers does so within milliseconds."""


class Level(Enum):
    """How much a finding matters."""

    GOOD = "ok"
    NOTE = "note"  # something does less than it could
    MISSING = "missing"  # training on several workers does not work without it


GOOD, NOTE, MISSING = Level.GOOD, Level.NOTE, Level.MISSING


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``uneven doctor``: what was found, and what follows from it."""

    topic: str
    level: Level
    found: str
    consequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver sees it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What a fresh process found out about torch by using it; ``error`` is empty if all went well."""

    version: str = ""
    cuda_build: str = ""  # "" for a CPU build
    cuda_devices: int = 0
    nccl: bool = False
    gloo: bool = False  # two processes added their tensors up over 127.0.0.1
    gloo_s: float = 0.0  # from both being started to the sum
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The network interface that gloo takes, and why."""

    name: str  # "" if none fits
    address: str
    forced: bool  # by GLOO_SOCKET_IFNAME
    exists: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolder:
    """The folder that UNEVEN_DATA names."""

    path: str
    exists: bool
    listed: int  # files that its SHA256SUMS lists; 0 without that file
    absent: tuple[str, ...]  # of these, those that are not there
    fashion_mnist: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything that was gathered about a machine and this Python."""

    system: str
    python: tuple[int, int, int]
    uneven: str
    cores: int
    usable_cores: int  # by the affinity of this process
    quota_cores: float | None  # by its control group; None without a limit
    memory_bytes: int
    available_bytes: int
    memory_limit_bytes: int | None  # by its control group
    shared_memory_bytes: int | None  # size of /dev/shm; None where there is none
    gpus: tuple[Gpu, ...]
    gpu_error: str
    torch: TorchFacts
    interface: Interface
    lookup_s: float  # until the name of its address is known, or that it has none
    data: DataFolder | None
    root: bool
    throttle_error: str  # "" if a child could be stopped, continued and its CPU time read
    isolation_error: str  # "" if `uneven emulate` can give nodes namespaces and control groups
    bandwidth_error: str  # "" if it can limit bandwidth
    latency_error: str  # "" if it can delay packets
    netem_error: str  # "" if the kernel does that
    packages: dict[str, str]  # optional package → version, "" if not installed


def findings(facts: MachineFacts) -> list[Finding]:
    """One finding per topic, in the order in which a reader wants them."""
    return [
        _python(facts),
        *_torch(facts),
        _gloo(facts.torch),
        _cores(facts),
        *_memory(facts),
        _gpus(facts),
        _nccl(facts),
        _interface(facts.interface),
        _names(facts.lookup_s, facts.interface.address),
        _throttle(facts),
        *_emulator(facts),
        _data(facts.data),
        *_packages(facts.packages),
    ]


def works(found: list[Finding]) -> bool:
    """Whether training on several workers works here."""
    return all(finding.level is not MISSING for finding in found)


def _python(facts: MachineFacts) -> Finding:
    text = f"{'.'.join(map(str, facts.python))} on {facts.system}, uneven {facts.uneven}"
    if facts.python < (3, 11, 0):
        return Finding("python", MISSING, text, "uneven needs Python 3.11 or newer")
    if facts.system != "Linux":
        return Finding("python", NOTE, text, "developed and tested on Linux; other systems by design only")
    return Finding("python", GOOD, text, "supported")


def _torch(facts: MachineFacts) -> Iterator[Finding]:
    torch = facts.torch
    if not torch.version:
        yield Finding("torch", MISSING, torch.error or "not found", "nothing trains; pip install torch")
        return
    build = f"CUDA {torch.cuda_build}" if torch.cuda_build else "CPU build"
    yield Finding("torch", GOOD, f"{torch.version} ({build})", "imports")


def _gloo(torch: TorchFacts) -> Finding:
    if torch.gloo:
        found = f"two processes met on 127.0.0.1 and added up in {torch.gloo_s:.1f} s, start included"
        return Finding("gloo", GOOD, found, "several workers on CPU work on this machine")
    cure = "several workers cannot talk; see the interface below, and look for a firewall on the loopback"
    return Finding("gloo", MISSING, torch.error or "not in this build of torch", cure)


def _cores(facts: MachineFacts) -> Finding:
    limits = [float(facts.usable_cores)] + ([facts.quota_cores] if facts.quota_cores is not None else [])
    mine = min(limits)
    parts = [f"{facts.cores} on the machine"]
    if facts.usable_cores < facts.cores:
        parts.append(f"{facts.usable_cores} by affinity")
    if facts.quota_cores is not None:
        parts.append(f"{facts.quota_cores:g} by control group")
    text = ", ".join(parts)
    if facts.quota_cores is not None and facts.quota_cores < facts.usable_cores:
        why = f"worth {mine:g} cores; set OMP_NUM_THREADS by hand, torch counts {facts.usable_cores}"
        return Finding("cores", NOTE, text, why)
    if mine < 2:
        return Finding("cores", NOTE, text, "workers share one core: a run works, but nothing gets faster")
    return Finding("cores", GOOD, text, f"up to {int(mine)} CPU workers without sharing a core")


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    text = f"{_size(facts.memory_bytes)}, {_size(facts.available_bytes)} available"
    usable = facts.available_bytes
    if facts.memory_limit_bytes is not None:
        text += f", limited to {_size(facts.memory_limit_bytes)} by control group"
        usable = min(usable, facts.memory_limit_bytes)
    workers = usable // (512 * MIB)
    level = GOOD if workers >= 4 else NOTE
    yield Finding("memory", level, text, f"enough for about {workers} small workers (half a GiB each)")
    shared = facts.shared_memory_bytes
    if shared is not None and shared < 256 * MIB:
        cure = "DataLoader(num_workers>0) can die of a bus error; docker run --shm-size=2g, or num_workers=0"
        yield Finding("shared memory", NOTE, f"/dev/shm holds {_size(shared)}", cure)


def _gpus(facts: MachineFacts) -> Finding:
    if not facts.gpus:
        why = f" ({facts.gpu_error})" if facts.gpu_error else ""
        return Finding("gpus", GOOD, f"none{why}", "workers train on CPU")
    text = ", ".join(f"{gpu.name} {_size(gpu.memory_bytes)}" for gpu in facts.gpus)
    usable = facts.torch.cuda_devices
    if usable == 0:
        why = f"torch cannot use them: this is a {'CUDA' if facts.torch.cuda_build else 'CPU'} build"
        cure = "install a build for your driver from pytorch.org, or check CUDA_VISIBLE_DEVICES"
        return Finding("gpus", NOTE, text, f"{why}; {cure}")
    if usable < len(facts.gpus):
        return Finding("gpus", NOTE, text, f"torch sees {usable} of {len(facts.gpus)}; CUDA_VISIBLE_DEVICES?")
    return Finding("gpus", GOOD, text, f"one worker per GPU: uneven run --nproc {usable}")


def _nccl(facts: MachineFacts) -> Finding:
    if facts.torch.nccl:
        return Finding("nccl", GOOD, "in this build of torch", "GPU workers exchange through NCCL")
    if facts.gpus:
        return Finding("nccl", NOTE, "not in this build of torch", "GPU workers would exchange through gloo")
    return Finding("nccl", GOOD, "not in this build of torch", "not needed without GPUs")


def _interface(chosen: Interface) -> Finding:
    if not chosen.exists:
        cure = "there is no such interface: several workers will not start; unset GLOO_SOCKET_IFNAME"
        return Finding("interface", MISSING, f"GLOO_SOCKET_IFNAME={chosen.name}", cure)
    if chosen.forced:
        text = f"{chosen.name} ({chosen.address}), by GLOO_SOCKET_IFNAME"
        return Finding("interface", GOOD, text, "gloo takes it for all exchanges")
    text = f"{chosen.name or 'loopback'} ({chosen.address}), where the host name leads"
    if chosen.address.startswith("127.") or chosen.address == "::1":
        cure = "fine on one machine; across machines set GLOO_SOCKET_IFNAME to the interface between them"
        return Finding("interface", GOOD, text, cure)
    return Finding("interface", GOOD, text, "gloo takes it; GLOO_SOCKET_IFNAME chooses another one")


def _names(lookup_s: float, address: str) -> Finding:
    if lookup_s <= LOOKUP_S:
        return Finding("names", GOOD, f"an address is looked up in {1e3 * lookup_s:.1f} ms", "workers meet at once")
    address = address or "127.0.0.1"
    cure = (
        "torch looks up each worker that connects, all wait meanwhile, and short time-outs run out; "
        f"add '::ffff:{address} NAME' to /etc/hosts, or mend the name server"
    )
    return Finding("names", NOTE, f"to look up an address takes {lookup_s:.1f} s or more", cure)


def _throttle(facts: MachineFacts) -> Finding:
    if facts.throttle_error:
        why = "`uneven demo` and `uneven run --shares` cannot slow workers down; training is not affected"
        return Finding("throttling", NOTE, facts.throttle_error, why)
    text = "a child can be stopped and continued, and its CPU time be read"
    return Finding("throttling", GOOD, text, "`uneven demo` and `uneven run --shares` work without root")


def _emulator(facts: MachineFacts) -> Iterator[Finding]:
    if facts.isolation_error:
        cure = "`uneven emulate` gives shares of processor time only; links, memory and load need root on Linux"
        yield Finding("emulation", NOTE, facts.isolation_error, cure)
        return
    means = "root; network namespaces and control groups"
    if facts.bandwidth_error:
        cure = "`uneven emulate` refuses bandwidth limits; `uneven simulate` knows them"
        yield Finding("emulation", NOTE, f"{means}; {facts.bandwidth_error}", cure)
    else:
        yield Finding("emulation", GOOD, f"{means}; tbf", "`uneven emulate` carries all but perhaps latency")
    if facts.latency_error:
        cure = "`uneven emulate` refuses latency_s; --leave-out latency_s, or use `uneven simulate`"
        yield Finding("latency", NOTE, facts.latency_error, cure)
    else:
        means = "a process, as this kernel has no netem" if facts.netem_error else "netem"
        yield Finding("latency", GOOD, means, "`uneven emulate` carries latency_s, of nodes and of lines between sites")


def _data(folder: DataFolder | None) -> Finding:
    if folder is None:
        return Finding("data", GOOD, "UNEVEN_DATA not set", "demo and benchmarks use scikit-learn's digits")
    text = f"UNEVEN_DATA={folder.path}"
    if not folder.exists:
        return Finding("data", NOTE, f"{text}: no such folder", "correct it or unset it; digits are used")
    if folder.absent:
        names = ", ".join(folder.absent[:3]) + (", …" if len(folder.absent) > 3 else "")
        found = f"{text}: {len(folder.absent)} of {folder.listed} files absent ({names})"
        return Finding("data", NOTE, found, "what needs these files falls back to digits or says so")
    if not folder.fashion_mnist:
        return Finding("data", NOTE, f"{text}: no fashion_mnist", "the demo uses scikit-learn's digits")
    count = f"all {folder.listed} listed files" if folder.listed else "Fashion-MNIST"
    return Finding("data", GOOD, f"{text}: {count} there", "the demo can take Fashion-MNIST")


def _packages(packages: dict[str, str]) -> Iterator[Finding]:
    uses = {"ray": "Ray Train as a launcher", "tensorboard": "TensorBoard scalars"}
    for name, version in packages.items():
        level, then = (GOOD, "available") if version else (NOTE, install_hint(f".[{name}]"))
        yield Finding(name, level, version or "not installed", f"{uses[name]}: {then}")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
