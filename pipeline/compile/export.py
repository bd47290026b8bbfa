"""The checkpoint again in another format, from its own packed weights: no rounding happens here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.pipeline.compile.target import OnProgress
from gristmill.runtime.checkpoint import Checkpoint, open_checkpoint
from gristmill.runtime.errors import InternalError
from gristmill.runtime.formats.kv_scales import kv_scale_tensors
from gristmill.runtime.formats.select import FormatName, format_of
from gristmill.runtime.formats.verify import verify_checkpoint
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.scheme import QuantizedTensor
from gristmill.runtime.sources.base import Tensor
from gristmill.runtime.sources.hf_folder import HfFolder

__all__ = ["export_checkpoint"]

_QUANTIZATION = "quantization_config"


def export_checkpoint(
    format: FormatName, checkpoint: Path, out: Path, on_progress: OnProgress | None = None
) -> None:
    """Write `checkpoint` into the new folder `out` in another format, and compare it bit for bit.

    One weight is held at a time. Raises UnsupportedError for weights, or scales
    of an FP8 cache, that the format can't hold, IntegrityError, StorageError.
    """
    opened = open_checkpoint(checkpoint)
    quantized = _Quantized(opened)
    source = _Unpacked(opened, HfFolder(checkpoint))
    write_checkpoint(out, source, quantized, {}, format, kv_scales=opened.kv_scales)
    verify_checkpoint(out, quantized, {}, opened.kv_scales)
    if on_progress is not None:
        layers = len(opened.plan.layers)
        on_progress(layers, layers)


class _Quantized(Mapping[str, QuantizedTensor]):
    """The packed linears by name, each read when it is asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        plan = checkpoint.plan
        linears = plan.linears if plan.head is None else (*plan.linears, plan.head)
        self._checkpoint = checkpoint
        self._linears: dict[str, LinearPlan] = {
            linear.name: linear for linear in linears if linear.name in checkpoint.schemes
        }

    def __getitem__(self, name: str) -> QuantizedTensor:
        weight = self._checkpoint.weight(self._linears[name])
        assert isinstance(weight, QuantizedTensor)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._linears)

    def __len__(self) -> int:
        return len(self._linears)


@dataclass(frozen=True, slots=True)
class _Unpacked:
    """The model as it was before packing: a `ModelSource` whose packed weights have shapes and no data."""

    checkpoint: Checkpoint
    folder: HfFolder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def revision(self) -> str | None:
        return None

    @property
    def config(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.folder.config.items() if key != _QUANTIZATION}

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        pieces = self._pieces()
        plain = {name: shape for name, shape in self.folder.tensor_shapes().items() if name not in pieces}
        return {**plain, **self.checkpoint.plan.tensor_shapes()}

    def load(self, name: str) -> Tensor:
        if name.removesuffix(".weight") in self.checkpoint.schemes:
            raise InternalError(f"tensor {name} is packed and was asked for as it is")
        return self.folder.load(name)

    def side_files(self) -> Mapping[str, bytes]:
        return self.folder.side_files()

    def digest(self) -> str:
        return self.folder.digest()

    def _pieces(self) -> set[str]:
        """The stored tensors that packed weights are made of, and the scales of an FP8 cache."""
        schemes = self.checkpoint.schemes
        if not schemes:
            return set()
        plan, scales = self.checkpoint.plan, self.checkpoint.kv_scales
        layout = format_of(self.checkpoint.config[_QUANTIZATION]).layout
        shapes = plan.tensor_shapes()
        pieces = set(kv_scale_tensors(plan, scales, np.dtype(np.float32))) if scales else set()
        for name, scheme in schemes.items():
            rows, columns = shapes[f"{name}.weight"]
            pieces |= layout(name, scheme, (rows, columns)).keys()
        return pieces
