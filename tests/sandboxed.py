"""Tests that run programs of others: only where the kernel can lock those in."""

from __future__ import annotations

import pytest

from gristmill.pipeline.validate.tasks.sandbox import require_sandbox
from gristmill.runtime.errors import UnsupportedError

__all__ = ["skip_without_sandbox"]


def skip_without_sandbox() -> None:
    """Skip the module that is being imported, as in a container without namespaces of its own."""
    try:
        require_sandbox("of the tests")
    except UnsupportedError as error:
        pytest.skip(error.line(), allow_module_level=True)
