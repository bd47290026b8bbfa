"""The checkpoint stage: quantized tensors as a Hugging Face folder that was read back and compared."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.formats.verify import verify_checkpoint
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.scheme import QuantizedTensor
from gristmill.runtime.sources.base import ModelSource, Tensor

__all__ = ["CHECKPOINT", "WrittenCheckpoint", "write_verified"]

CHECKPOINT = "checkpoint"
_CODE = (
    "gristmill.runtime.formats",
    "gristmill.runtime.kv_scales",
    "gristmill.runtime.packing",
    "gristmill.runtime.safetensors_writer",
)


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A Hugging Face folder and the key of the stage that wrote it."""

    folder: Path
    key: str


def write_verified(
    source: ModelSource,
    quantized: Mapping[str, QuantizedTensor],
    dense: Mapping[str, Tensor],
    *,
    format: FormatName,
    kv_scales: KVScales,
    quantize_key: str,
    stages: StageCache,
) -> WrittenCheckpoint:
    """The checkpoint of a quantize stage in one format, written now or by an earlier build.

    `kv_scales` are those of an FP8 cache, if it has any. A folder that an
    interrupted build left is written again from the start. Raises IntegrityError
    if what is read back differs, StorageError.
    """
    inputs = {"quantize": quantize_key, "format": format, "kv_scales": [asdict(entry) for entry in kv_scales]}
    key = stage_key("checkpoint", inputs, code_version(_CODE))
    if (done := stages.finished("checkpoint", key)) is not None:
        return WrittenCheckpoint(done / CHECKPOINT, key)
    with stages.open("checkpoint", key) as stage:
        folder = stage.folder / CHECKPOINT
        if folder.exists():
            shutil.rmtree(folder)
        write_checkpoint(folder, source, quantized, dense, format, kv_scales=kv_scales)
        verify_checkpoint(folder, quantized, dense, kv_scales)
        return WrittenCheckpoint(stage.finish() / CHECKPOINT, key)
