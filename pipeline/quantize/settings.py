"""From a recipe's words to the quantizers' settings."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.pipeline.quantize.awq import AwqSettings
from gristmill.pipeline.quantize.block import QuantizeSettings
from gristmill.pipeline.quantize.gptq import GptqSettings
from gristmill.pipeline.quantize.signround import SignRoundSettings
from gristmill.pipeline.quantize.smoothquant import SmoothQuantSettings
from gristmill.recipes.schema import Recipe
from gristmill.runtime.scheme import QuantScheme

__all__ = ["quantize_settings"]


def quantize_settings(recipe: Recipe, schemes: Mapping[str, QuantScheme | None]) -> QuantizeSettings:
    """What `quantize_block` needs; a method that is not used keeps its defaults.

    GPTQ, with which SignRound starts, aims at the original model's outputs. AWQ
    rounds to nearest, and a weight corrected along directions that calibration
    barely saw rounds badly.
    """
    settings, calibration = recipe.quantize, recipe.calibration
    gptq, awq, signround = settings.gptq, settings.awq, settings.signround
    smoothquant, activations = settings.smoothquant, settings.activations
    return QuantizeSettings(
        method=settings.method,
        scale_first=settings.scale == "awq",
        schemes=dict(schemes),
        gptq=GptqSettings(**gptq.model_dump()) if gptq else GptqSettings(),
        awq=AwqSettings(**awq.model_dump()) if awq else AwqSettings(),
        signround=SignRoundSettings(**signround.model_dump()) if signround else SignRoundSettings(),
        smoothquant=SmoothQuantSettings(**smoothquant.model_dump()) if smoothquant else SmoothQuantSettings(),
        input_percentile=activations.percentile if activations else 100.0,
        correct_drift=settings.method in ("gptq", "signround"),
        min_expert_tokens=calibration.min_expert_tokens if calibration else 0,
    )
