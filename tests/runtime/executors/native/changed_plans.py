"""Opens and runs an engine once for every number of its `plan.json` and each of some replacements.

    python -m tests.runtime.executors.native.changed_plans FOLDER

A process of its own, since a kernel that believes a wrong number may end it.
Headers are made to fit each changed plan, as one who wants it read would do.
Prints how many plans were refused and how many ran.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import ArtifactError, IntegrityError
from gristmill.runtime.executors.base import SequenceStep
from gristmill.runtime.executors.native.engine_file import (
    PLAN_FILE,
    WEIGHTS_FILE,
    header_for,
    read_engine_file,
)
from gristmill.runtime.files import canonical_json
from tests.runtime.executors.native.tiny_engines import open_executor

REPLACEMENTS = (0, -1, 1, 2**31, 2**40, 2**63 - 1, -1.5, "x", None)
_STEP_TOKENS = 40


def numbers(value: Any) -> Iterator[tuple[Any, Any]]:
    """The container and the key of each number or switch in a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in entries:
        if isinstance(item, dict | list):
            yield from numbers(item)
        elif isinstance(item, int | float):
            yield value, key


def changed(plan: dict[str, Any]) -> Iterator[bytes]:
    """The plan file with one number replaced, all of them in turn."""
    for container, key in list(numbers(plan)):
        before = container[key]
        for replacement in REPLACEMENTS:
            container[key] = replacement
            yield canonical_json(plan)
        container[key] = before


def outcome(folder: Path) -> str:
    """Whether the engine is refused before it opens, or opens and computes a step."""
    try:
        engine = read_engine_file(folder)
    except (ArtifactError, IntegrityError):
        return "refused"
    executor = open_executor(engine, blocks=4, kv="fp8", threads=2)
    tokens = [i % engine.plan.vocab_size for i in range(min(_STEP_TOKENS, engine.plan.max_positions))]
    executor.execute([SequenceStep(tokens, 0, range(4), "all")])
    executor.close()
    return "ran"


def main(folder: Path) -> None:
    outcomes: Counter[str] = Counter()
    size = (folder / WEIGHTS_FILE).stat().st_size
    for data in changed(json.loads((folder / PLAN_FILE).read_bytes())):
        (folder / PLAN_FILE).write_bytes(data)
        with (folder / WEIGHTS_FILE).open("r+b") as file:
            file.write(header_for(data, size))
        outcomes[outcome(folder)] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
