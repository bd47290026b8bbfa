"""The process that locks itself in and runs a program there: `python sandbox_launcher.py RESULT_FD LIMITS`.

The program comes on standard input. Whatever keeps the lock from closing is
written to RESULT_FD, and nothing runs. Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["main"]

_CLONE_NEWUSER = 0x10000000
_CLONE_OTHERS = 0x40000000 | 0x00020000 | 0x20000000 | 0x08000000 | 0x04000000
"""CLONE_NEWNET, _NEWNS, _NEWPID, _NEWIPC, _NEWUTS."""
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SIGKILL = 9
_NOBODY = 65534
_FIRST_USER = 2_000_000
"""Root becomes a user of no account, another one each time: the kernel counts processes by user."""
_ROOT = "/tmp"  # a folder of every machine; the one seen here is a file system of our own
_WORK = "/work"
_LIBRARIES = ("/usr", "/lib", "/lib64")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Lock in, run, and end as the program ends."""
    result, limits = int(sys.argv[1]), json.loads(sys.argv[2])
    program = sys.stdin.buffer.read()
    python = os.path.realpath(sys.executable)
    user = _FIRST_USER + os.getpid() if os.geteuid() == 0 else None
    try:
        _new_namespaces()
    except OSError as error:
        _give_up(result, error)
    if (init := os.fork()) == 0:  # the first process of its namespace: when it ends, all others do
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        try:
            _new_root(program, limits["disk_bytes"])
        except OSError as error:
            _give_up(result, error)
        if (child := os.fork()) == 0:
            try:
                _run(python, user, limits)
            except OSError as error:
                _give_up(result, error)
        os._exit(_wait(child))
    os._exit(_wait(init))


def _new_namespaces() -> None:
    """Those of root need no user namespace, and root's own could hold no limit on processes."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call("unshare", _CLONE_OTHERS)
        return
    _call("unshare", _CLONE_NEWUSER | _CLONE_OTHERS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_NOBODY} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{_NOBODY} {group} 1")


def _new_root(program: bytes, size: int) -> None:
    """A file system of `size` bytes with the interpreter in it, read-only, the program and nothing else."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", _ROOT, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode=755")
    for path in dict.fromkeys((*_LIBRARIES, sys.base_prefix)):
        _bind(path)
    work = Path(_ROOT + _WORK)
    work.mkdir()
    (work / "program.py").write_bytes(program)
    work.chmod(0o777)
    os.chroot(_ROOT)
    os.chdir(_WORK)


def _bind(path: str) -> None:
    target = _ROOT + path
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path) and not os.path.exists(target):
        os.makedirs(target)
        _mount(path, target, None, _MS_BIND | _MS_REC)
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [line.split()[4] for line in file]
        for mount in mounts:
            if mount == target or mount.startswith(target + "/"):
                _mount(None, mount, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _run(python: str, user: int | None, limits: Mapping[str, int]) -> None:
    """Become the program, as `user` where we are root, without privileges and within the limits."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for kind, limit in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    os.execve(python, [python, "-I", "-S", "-B", "program.py"], {})


def _give_up(result: int, error: OSError) -> None:
    os.write(result, f"locked out: {error}".encode())
    os._exit(1)


def _wait(process: int) -> int:
    _, status = os.waitpid(process, 0)
    return 0 if status == 0 else 1


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    texts = (None if text is None else text.encode() for text in (source, target, kind))
    _call("mount", *texts, ctypes.c_ulong(flags), options.encode())


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, value, 0, 0, 0)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


if __name__ == "__main__":
    main()
