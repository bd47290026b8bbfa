"""The C++ extension; everything else is in pyproject.toml."""

import os
from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, naive_recompile
from setuptools import setup

_SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"]
# gcc 12's own intrinsics headers start from undefined registers and warn about it.
_WARNINGS = ["-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
sanitize = _SANITIZE if os.environ.get("GRISTMILL_SANITIZE") else []

ParallelCompile(default=0, needs_recompile=naive_recompile).install()
setup(
    ext_modules=[
        Pybind11Extension(
            "gristmill.runtime.kernels._native",
            sorted(glob("runtime/kernels/native/*.cpp")),
            depends=sorted(glob("runtime/kernels/native/*.[hi]*")),
            cxx_std=17,
            extra_compile_args=["-O3", "-ffp-contract=off", "-fvisibility=hidden", *_WARNINGS, *sanitize],
            extra_link_args=["-pthread", *sanitize],
        )
    ]
)
