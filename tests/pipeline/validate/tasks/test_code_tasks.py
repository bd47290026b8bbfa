"""Tasks whose answers are programs: the data's own references pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.validate.tasks.answers import answered, share, task_rows
from tests.sandboxed import skip_without_sandbox

skip_without_sandbox()


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_reference_programs_pass_and_others_fail(name: str, data_dir: Path) -> None:
    rows = task_rows(name, data_dir, 12)
    assert share(answered(name, rows, [row["reference"] for row in rows]), "pass@1") == 1.0
    assert share(answered(name, rows, ["    return None"] * len(rows)), "pass@1") == 0.0
