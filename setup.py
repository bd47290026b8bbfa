"""The C++ extension; everything else is in pyproject.toml."""

import os
from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

SOURCES = sorted(glob("runtime/kernels/native/*.cpp"))
HEADERS = sorted(glob("runtime/kernels/native/*.[hi]*"))

# Calls instead of inline checks, and no checks of pointer arithmetic, halve the time that unrolled kernels
# take to compile; what is read and written stays checked.
_SANITIZE = [
    "-O1",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize=null,pointer-overflow,object-size,vptr",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "--param=asan-instrumentation-with-call-threshold=0",
]
# gcc 12's own intrinsics headers start from undefined registers and warn about it.
_WARNINGS = ["-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
sanitize = _SANITIZE if os.environ.get("GRISTMILL_SANITIZE") else []


def is_stale(object_file: str, source: str) -> bool:
    """Whether an object is older than its source or any header: objects of two layouts must not meet."""
    if not os.path.exists(object_file):
        return True
    made = os.path.getmtime(object_file)
    return any(os.path.getmtime(path) > made for path in (source, *HEADERS))


ParallelCompile(default=0, needs_recompile=is_stale).install()
setup(
    ext_modules=[
        Pybind11Extension(
            "gristmill.runtime.kernels._native",
            SOURCES,
            depends=HEADERS,
            cxx_std=17,
            extra_compile_args=["-O3", "-ffp-contract=off", "-fvisibility=hidden", *_WARNINGS, *sanitize],
            extra_link_args=["-pthread", *sanitize],
        )
    ]
)
