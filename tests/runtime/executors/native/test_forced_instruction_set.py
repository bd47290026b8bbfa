"""A process that is told to use plain loops runs a model with them, from the import to the logits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from gristmill.runtime.executors.base import SequenceStep
from tests.runtime.executors.native.tiny_engines import OpenExecutor, TinyEngine

TOKENS = [5, 17, 80, 3]
SCRIPT = f"""
import json, sys
from pathlib import Path
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.native.engine_file import read_engine_file
from gristmill.runtime.executors.native.executor import NativeExecutor
from gristmill.runtime.settings import ExecutorOptions

engine = read_engine_file(Path(sys.argv[1]))
executor = NativeExecutor(engine, KVCacheConfig(4, 16, "float32"), ExecutorOptions("int8", 2))
logits = executor.execute([SequenceStep({TOKENS}, 0, [0])])
print(json.dumps({{"kernels": list(executor.info.kernels.values()), "logits": logits.tolist()}}))
"""


def test_plain_loops_run_a_model_end_to_end(
    tiny_engine: Callable[[str, str], TinyEngine], open_native: OpenExecutor
) -> None:
    engine = tiny_engine("shared key heads", "mixed").file
    command = [sys.executable, "-c", SCRIPT, str(engine.path.parent)]
    environment = {**os.environ, "GRISTMILL_ISA": "scalar"}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found = json.loads(printed)
    assert all(name.endswith("(scalar)") for name in found["kernels"])
    expected = open_native(engine, instruction_set="scalar").execute([SequenceStep(TOKENS, 0, [0])])
    assert np.array_equal(np.array(found["logits"], np.float32), expected)
