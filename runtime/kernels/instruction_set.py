"""Which instruction set's kernels run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gristmill.runtime.errors import UnsupportedError

__all__ = ["ISA_VARIABLE", "chosen_instruction_set"]

ISA_VARIABLE = "GRISTMILL_ISA"
"""Environment variable that names the instruction set to use instead of the fastest."""


def chosen_instruction_set(known: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """The one that GRISTMILL_ISA names, or else the last of `known`: what this machine runs, slowest first.

    Raises UnsupportedError for a name that is not among them.
    """
    forced = environment.get(ISA_VARIABLE)
    if forced and forced not in known:
        raise UnsupportedError(
            f"{ISA_VARIABLE} names an instruction set that this machine does not run",
            found=forced,
            expected=" or ".join(known),
        )
    return forced or known[-1]
