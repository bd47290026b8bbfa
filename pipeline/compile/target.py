"""What a compile target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from gristmill.runtime.model_plan import ModelPlan

__all__ = ["OnProgress", "Target"]

OnProgress: TypeAlias = Callable[[int, int], None]
"""Hears how many of how many steps are done."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a checkpoint can be compiled to.

    An `engine` serves, and lies in `engines/<name>/`; an `export` is a folder
    for other programs, in `exports/<name>/`. `write(checkpoint, out,
    on_progress)` fills the new folder `out`; equal input gives equal bytes.
    `check(plan)` raises UnsupportedError for a model that it can't hold.
    """

    name: str
    kind: Literal["engine", "export"]
    makes: str
    needs: str
    write: Callable[[Path, Path, OnProgress | None], None]
    check: Callable[[ModelPlan], None] = lambda plan: None

    @property
    def place(self) -> str:
        """Its folder inside an artifact."""
        return f"{self.kind}s/{self.name}"
