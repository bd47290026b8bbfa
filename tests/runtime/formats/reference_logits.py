"""What the reference executor computes with a checkpoint that was written with one scheme."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.base import KVCacheConfig, SequenceStep
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.formats.verify import verify_checkpoint
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.tiny_checkpoints import quantize_source

__all__ = ["written_logits"]


def written_logits(
    folder: Path, source: HfFolder, scheme: QuantScheme, tokens: Sequence[int]
) -> NDArray[np.float32]:
    """Write `source` to `folder`, all but its third layer in `scheme`; its float32 logits, a row a token."""
    quantized = quantize_source(source, lambda name: None if "layers.2." in name else scheme)
    write_checkpoint(folder, source, quantized, {}, "compressed-tensors")
    verify_checkpoint(folder, quantized, {})
    cache = KVCacheConfig(-(-len(tokens) // 16), 16, "float32")
    with closing(ReferenceExecutor(open_checkpoint(folder), cache, "float32")) as executor:
        return executor.execute([SequenceStep(tokens, 0, range(cache.num_blocks), logits="all")])
