"""Hides from uneven the modules and names that macOS or Windows lacks, in a process that asks, and in all below it.

A folder on ``PYTHONPATH`` with this file, and ``UNEVEN_TEST_SYSTEM`` = ``darwin`` or ``win32``, make a Linux process
look like one there. ``UNEVEN_TEST_LACKS=gloo`` makes torch look like a build without gloo. Modules of uneven get other
modules in place of ``os``, ``sys``, ``signal`` and so on; all other packages see Linux, on which they run. It cannot
show other semantics of names that both systems have (an open file cannot be renamed on Windows), speed, and what other
packages do there.
"""

import builtins
import importlib
import os
import stat
import sys
import types

SYSTEM, LACKS = os.environ.get("UNEVEN_TEST_SYSTEM", ""), os.environ.get("UNEVEN_TEST_LACKS", "")

ABOUT_LINUX = (
    *("memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate", "sendfile", "setns", "unshare"),
    *("sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "sched_setscheduler", "sched_param", "eventfd"),
    *("MFD_CLOEXEC", "O_DIRECT", "O_TMPFILE", "SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE", "SCHED_RR", "splice"),
    *("SCHED_RESET_ON_FORK", "copy_file_range", "getxattr", "setxattr", "listxattr", "getresuid", "setresuid"),
)
ABOUT_UNIX = (
    *("chown", "chroot", "ctermid", "fchdir", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "fstatvfs"),
    *("getegid", "geteuid", "getgid", "getgrouplist", "getgroups", "getloadavg", "getpgid", "getpgrp", "getpriority"),
    *("getsid", "getuid", "initgroups", "killpg", "lchown", "lockf", "major", "makedev", "minor", "mkfifo", "mknod"),
    *("nice", "openpty", "pathconf", "posix_spawn", "posix_spawnp", "pread", "preadv", "pwrite", "pwritev", "readv"),
    *("register_at_fork", "setegid", "seteuid", "setgid", "setgroups", "setpgid", "setpriority", "setregid"),
    *("setreuid", "setsid", "setuid", "set_blocking", "get_blocking", "statvfs", "sync", "sysconf", "tcgetpgrp"),
    *("tcsetpgrp", "ttyname", "uname", "wait", "wait3", "wait4", "waitid", "writev", "O_CLOEXEC", "O_NONBLOCK"),
    *("O_NOFOLLOW", "O_DIRECTORY", "O_SYNC", "O_NOCTTY"),
)
WINDOWS_SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}

# module → names that it lacks there
NAMES = {
    "darwin": {
        "os": ABOUT_LINUX,
        "signal": ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT"),
        "select": ("epoll",),
        "socket": ("TCP_USER_TIMEOUT", "TCP_INFO", "AF_NETLINK", "AF_PACKET", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        "selectors": ("EpollSelector",),
    },
    "win32": {
        "os": (*ABOUT_LINUX, *ABOUT_UNIX),
        "signal": ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "alarm", "setitimer", "pause", "sigwait"),
        "select": ("epoll", "poll"),
        "socket": ("AF_UNIX", "TCP_USER_TIMEOUT", "TCP_INFO", "AF_NETLINK", "AF_PACKET", "send_fds", "recv_fds"),
        "selectors": ("EpollSelector", "PollSelector"),
        "time": ("clock_gettime", "clock_gettime_ns", "clock_getres", "tzset", "pthread_getcpuclockid"),
        "faulthandler": ("register", "unregister"),
    },
}
MODULES = {
    "darwin": (),
    "win32": ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "posix", "crypt"),
}
PROCESS = {
    "darwin": ("io_counters", "cpu_affinity", "cpu_num", "ionice", "rlimit"),
    "win32": ("num_fds", "uids", "gids", "terminal", "rlimit", "cpu_num"),
}


def of_uneven(name: str) -> bool:
    return name.partition(".")[0] == "uneven"


class Other(types.ModuleType):
    """A module without some names, and with others instead."""

    def __init__(self, real: types.ModuleType, lacks: set[str], has: dict[str, object]) -> None:
        super().__init__(real.__name__)
        vars(self).update(_real=real, _lacks=lacks, **has)

    def __getattr__(self, name: str) -> object:
        if name in self._lacks:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on {SYSTEM}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._real, name, value)


_others: dict[str, types.ModuleType] = {}
_import = builtins.__import__


def importing(name, globals=None, locals=None, fromlist=(), level=0):
    """Import what uneven asks for as that system would."""
    asking = str((globals or {}).get("__name__", ""))
    if level == 0 and of_uneven(asking):
        if name.partition(".")[0] in MODULES[SYSTEM]:
            raise ModuleNotFoundError(f"No module named {name!r} on {SYSTEM}", name=name)
        if name in _others:
            return _others[name]
    module = _import(name, globals, locals, fromlist, level)
    if "psutil" in sys.modules:
        change_processes(sys.modules["psutil"])
    torch = sys.modules.get("torch.distributed")
    if hasattr(torch, "TCPStore") and not torch.__spec__._initializing:
        change_torch()
    return module


def change_processes(psutil) -> None:
    if not hasattr(psutil, "Process") or hasattr(psutil.Process, SYSTEM):
        return
    setattr(psutil.Process, SYSTEM, True)
    for name in PROCESS[SYSTEM]:
        if hasattr(psutil.Process, name):
            delattr(psutil.Process, name)
    memory_info = psutil.Process.memory_info
    if SYSTEM == "win32":

        def of_windows(self):
            found = memory_info(self)
            return types.SimpleNamespace(**found._asdict(), peak_wset=found.rss)

        psutil.Process.memory_info = of_windows


def change_torch() -> None:
    distributed, c10d = sys.modules["torch.distributed"], sys.modules["torch.distributed.distributed_c10d"]
    if "gloo" in LACKS and c10d._GLOO_AVAILABLE:
        c10d._GLOO_AVAILABLE = False
        del c10d.ProcessGroupGloo, distributed.ProcessGroupGloo
    real = distributed.TCPStore
    if SYSTEM == "win32" and real.__name__ == "TCPStore":

        class StoreOfWindows(real):
            def __init__(self, *args, use_libuv=True, **how):
                if use_libuv:
                    raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
                super().__init__(*args, use_libuv=False, **how)

        sys.modules["torch.distributed.rendezvous"].sys = _others["sys"]
        for module in [one for name, one in list(sys.modules.items()) if name.startswith("torch.distributed")]:
            if getattr(module, "TCPStore", None) is real:
                module.TCPStore = StoreOfWindows


def socketpair(*_):
    """Two sockets of the loopback, as on Windows."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        return one, listening.accept()[0]


def only_sockets(self, fileobj, events, data=None, *, register):
    """Windows waits for sockets only, and not for pipes or other descriptors."""
    number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError(10038, "An operation was attempted on something that is not a socket")
    return register(self, fileobj, events, data)


def locking(descriptor, mode, length):
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if mode == 2 else 0))


def asked_by_uneven() -> bool:
    """Whether the innermost frame outside of Python's own modules for files is of uneven."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "") in ("pathlib", "io", "os", "genericpath"):
        frame = frame.f_back
    return frame is not None and of_uneven(str(frame.f_globals.get("__name__", "")))


def only_of_linux(path: object) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc/", "/sys/"))


def not_opened(event: str, details: tuple) -> None:
    if event in ("open", "os.listdir") and only_of_linux(details[0]) and asked_by_uneven():
        raise FileNotFoundError(2, "No such file or directory", details[0])


def hide_files() -> None:
    """Hide what Linux has in ``/proc`` and ``/sys`` from uneven."""
    real = os.stat

    def stat_(path, **how):
        if only_of_linux(path) and asked_by_uneven():
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, **how)

    for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        known.add(stat_)
    os.stat = stat_
    sys.addaudithook(not_opened)


def install() -> None:
    import ctypes
    import multiprocessing.context
    import selectors
    import signal

    has: dict[str, dict[str, object]] = {"sys": {"platform": SYSTEM}, "selectors": {}}
    lacks = {name: set(names) for name, names in NAMES[SYSTEM].items()}
    if SYSTEM == "win32":
        lacks["signal"] |= {name for name in dir(signal) if name.startswith("SIG")} - WINDOWS_SIGNALS
        has["selectors"]["DefaultSelector"] = selectors.SelectSelector
        has["socket"] = {"socketpair": socketpair}
        register = selectors.SelectSelector.register
        selectors.SelectSelector.register = lambda self, *what: only_sockets(self, *what, register=register)
        _others["msvcrt"] = types.ModuleType("msvcrt")
        vars(_others["msvcrt"]).update(locking=locking, LK_LOCK=1, LK_NBLCK=2)
        for method in ("fork", "forkserver"):
            multiprocessing.context._concrete_contexts.pop(method)
        library = ctypes.CDLL.__init__

        def load(self, name, *args, **how):
            if name is None and asked_by_uneven():
                raise TypeError("argument 1 must be str, not None")
            library(self, name, *args, **how)

        ctypes.CDLL.__init__ = load
    else:
        has["selectors"]["DefaultSelector"] = selectors.PollSelector
    multiprocessing.context._default_context._default_context = multiprocessing.get_context("spawn")
    for name in {*lacks, *has}:
        _others[name] = Other(importlib.import_module(name), lacks.get(name, set()), has.get(name, {}))
    hide_files()
    builtins.__import__ = importing


if SYSTEM:
    install()
