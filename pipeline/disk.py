"""How much disk space a build takes, stated before it runs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.search.size import fixed_bytes, linear_bytes
from gristmill.recipes.schema import Recipe
from gristmill.runtime.errors import StorageError
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.safetensors_files import MODEL_DTYPES
from gristmill.runtime.scheme import QuantScheme
from gristmill.runtime.units import human_bytes

__all__ = ["DiskPlan", "free_disk", "plan_disk", "require_disk"]

_SCALE_BYTES = 4
_OTHER = 32_000_000
"""Samples, measurements, golden prompts, side files, manifest and records, at most."""


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """Bytes that a build from its beginning leaves in the store; packaging links its files.

    layers       finished layers, a byte a code
    checkpoints  the recipe's own and its exports
    engines      compiled ones
    """

    layers: int
    checkpoints: int
    engines: int

    @property
    def total(self) -> int:
        """All of it, with samples, measurements and records."""
        return self.layers + self.checkpoints + self.engines + _OTHER

    def to_dict(self) -> dict[str, int]:
        """JSON-ready values."""
        return {**asdict(self), "total": self.total}

    def line(self) -> str:
        """The plan in one line."""
        return (
            f"disk: {human_bytes(self.total)} planned (layers {human_bytes(self.layers)}, "
            f"checkpoints {human_bytes(self.checkpoints)}, engines {human_bytes(self.engines)})"
        )


def plan_disk(model: BuildModel, recipe: Recipe) -> DiskPlan:
    """An estimate from shapes alone, for the schemes that `model` has now."""
    formats = (recipe.checkpoint, *recipe.exports)
    checkpoints = sum(_checkpoint_bytes(model, name) for name in formats)
    return DiskPlan(_layer_bytes(model), checkpoints, len(recipe.engines) * _engine_bytes(model))


def require_disk(needed: int, folder: Path) -> None:
    """Raise StorageError for a disk with less than `needed` bytes left; its `folder` need not exist yet."""
    if (free := free_disk(folder)) < needed:
        raise StorageError(
            f"disk space for {folder}",
            found=f"{human_bytes(free)} free",
            expected=f"{human_bytes(needed)} for this build",
            hint="free some space or choose another --store",
        )


def free_disk(folder: Path) -> int:
    """Bytes that this user may still write on the disk of `folder`, which need not exist yet."""
    present = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(present).free


def _checkpoint_bytes(model: BuildModel, format: FormatName) -> int:
    """The checkpoint folder's size in one format."""
    sizes = (linear_bytes(linear, scheme, format) for linear, scheme in _quantized(model))
    return fixed_bytes(model, format) + sum(sizes)


def _quantized(model: BuildModel) -> Iterator[tuple[LinearPlan, QuantScheme]]:
    for linear in model.plan.linears:
        if (scheme := model.schemes.get(linear.name)) is not None:
            yield linear, scheme


def _layer_bytes(model: BuildModel) -> int:
    """A byte a code, scales in float32 and zero points, and the plain tensors that a method may change."""
    weights = sum(math.prod(shape) for layer in model.plan.layers for shape in layer.tensor_shapes().values())
    codes = scales = 0
    for linear, scheme in _quantized(model):
        codes += linear.in_features * linear.out_features
        scales += linear.out_features * scheme.num_groups(linear.in_features)
    return codes + scales * (_SCALE_BYTES + 1) + (weights - codes) * _plain_bytes(model)


def _engine_bytes(model: BuildModel) -> int:
    """Codes of 4 or 8 bits with their scales and zero points, the head again in 8 bits, the rest as it is."""
    codes = weights = 0
    for linear, scheme in _quantized(model):
        count = linear.in_features * linear.out_features
        groups = linear.out_features * scheme.num_groups(linear.in_features)
        codes += count // (2 if scheme.bits <= 4 else 1) + groups * (_SCALE_BYTES + 2)
        weights += count
    head = model.plan.vocab_size * model.plan.hidden_size
    return codes + head + (model.plan.num_parameters() - weights) * _plain_bytes(model)


def _plain_bytes(model: BuildModel) -> int:
    return MODEL_DTYPES[model.plan.dtype].itemsize
