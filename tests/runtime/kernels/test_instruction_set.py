"""The fastest instruction set runs, or the one that the environment names if the machine has it."""

from __future__ import annotations

import pytest

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.kernels.instruction_set import chosen_instruction_set

KNOWN = ("scalar", "avx2", "amx")


@pytest.mark.parametrize("environment", [{}, {"GRISTMILL_ISA": ""}])
def test_the_fastest_is_the_default(environment: dict[str, str]) -> None:
    assert chosen_instruction_set(KNOWN, environment) == "amx"


def test_the_environment_forces_a_slower_one() -> None:
    assert chosen_instruction_set(KNOWN, {"GRISTMILL_ISA": "scalar"}) == "scalar"


def test_one_that_is_not_here_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnsupportedError, match=r"GRISTMILL_ISA.*found avx9000.*scalar or avx2 or amx"):
        chosen_instruction_set(KNOWN, {"GRISTMILL_ISA": "avx9000"})
