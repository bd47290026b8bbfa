"""Recipes: what a build is told, read from YAML and checked."""

from gristmill.recipes.gates import METRICS, Gate
from gristmill.recipes.kv_cache import KVCacheSettings
from gristmill.recipes.layers import assign_schemes
from gristmill.recipes.load import load_recipe, parse_recipe
from gristmill.recipes.presets import preset_names
from gristmill.recipes.quantize import AwqSettings, GptqSettings, Override, QuantizeSettings
from gristmill.recipes.resolve import resolved_yaml
from gristmill.recipes.schema import (
    CalibrationSettings,
    GoldenSettings,
    PromptSet,
    Recipe,
    ValidationData,
    ValidationGates,
    ValidationSettings,
)

__all__ = [
    "METRICS",
    "AwqSettings",
    "CalibrationSettings",
    "Gate",
    "GoldenSettings",
    "GptqSettings",
    "KVCacheSettings",
    "Override",
    "PromptSet",
    "QuantizeSettings",
    "Recipe",
    "ValidationData",
    "ValidationGates",
    "ValidationSettings",
    "assign_schemes",
    "load_recipe",
    "parse_recipe",
    "preset_names",
    "resolved_yaml",
]
