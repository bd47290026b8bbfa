"""Opening the model of a recipe: everything about it that can be known without loading a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from gristmill.pipeline.prepare.rotate import RotatedSource
from gristmill.recipes.layers import assign_schemes
from gristmill.recipes.schema import Recipe
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ModelError
from gristmill.runtime.model_plan import LinearPlan, ModelPlan
from gristmill.runtime.safetensors_files import MODEL_DTYPES
from gristmill.runtime.scheme import QuantScheme, ScaleDtype
from gristmill.runtime.sources.base import ModelSource
from gristmill.runtime.sources.hf_folder import require_unquantized
from gristmill.runtime.sources.open import open_source
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["BuildModel", "open_model", "stored_bits"]


@dataclass(frozen=True, slots=True, eq=False)
class BuildModel:
    """The source model, its plan and tokenizer, and each linear's scheme (None: left as it is)."""

    source: ModelSource
    plan: ModelPlan
    tokenizer: Tokenizer
    schemes: Mapping[str, QuantScheme | None]

    def rotated(self) -> BuildModel:
        """The same model with rotations folded into its weights. Raises UnsupportedError."""
        source = RotatedSource(self.source)
        return replace(self, source=source, plan=source.plan)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parameters in the checkpoint's own dtype."""
        return self.plan.num_parameters() * MODEL_DTYPES[self.plan.dtype].itemsize


def open_model(recipe: Recipe) -> BuildModel:
    """Open the recipe's model and settle every layer's scheme; no weight is read.

    Raises ModelError for a source that is missing, damaged, incomplete or
    already quantized, UnsupportedError for an architecture that is not
    planned, RecipeError for patterns and group sizes that do not fit.
    """
    source = open_source(recipe.model, recipe.base)
    require_unquantized(source)
    plan = plan_model(source.config)
    _require_tensors(source, plan)
    shapes = {linear.name: (linear.in_features, linear.out_features) for linear in plan.linears}
    schemes = assign_schemes(shapes, recipe.quantize, scale_dtype=cast(ScaleDtype, plan.dtype))
    return BuildModel(source, plan, Tokenizer.from_files(source.side_files(), source.config), schemes)


def stored_bits(
    linears: Iterable[LinearPlan], schemes: Mapping[str, QuantScheme | None]
) -> tuple[float, int]:
    """Bits of those of `linears` that are quantized, scales and zero points included, and their weights."""
    stored, weights = 0.0, 0
    for linear in linears:
        if (scheme := schemes.get(linear.name)) is not None:
            count = linear.in_features * linear.out_features
            stored += count * scheme.bits_per_weight(linear.in_features)
            weights += count
    return stored, weights


def _require_tensors(source: ModelSource, plan: ModelPlan) -> None:
    """Every tensor of the plan is there in the planned shape, before hours of work begin."""
    stored = source.tensor_shapes()
    for name, expected in plan.tensor_shapes().items():
        found = stored.get(name)
        if found is None:
            raise ModelError(f"model {source.name} lacks the tensor {name}", hint="its files are incomplete")
        if tuple(found) != tuple(expected):
            raise ModelError(f"model {source.name}: tensor {name}", found=tuple(found), expected=expected)
