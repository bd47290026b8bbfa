"""Model families: each file turns a Hugging Face `config.json` into a `ModelPlan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gristmill.runtime.architectures.config import describe
from gristmill.runtime.architectures.llama import plan_llama
from gristmill.runtime.architectures.mistral import plan_mistral
from gristmill.runtime.architectures.mixtral import plan_mixtral
from gristmill.runtime.architectures.qwen2 import plan_qwen2
from gristmill.runtime.architectures.qwen2_moe import plan_qwen2_moe
from gristmill.runtime.architectures.qwen3 import plan_qwen3
from gristmill.runtime.architectures.qwen3_moe import plan_qwen3_moe
from gristmill.runtime.architectures.smollm3 import plan_smollm3
from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.model_plan import ModelPlan

__all__ = ["ARCHITECTURES", "plan_model"]

ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Any]], ModelPlan]] = {
    "llama": plan_llama,
    "mistral": plan_mistral,
    "mixtral": plan_mixtral,
    "qwen2": plan_qwen2,
    "qwen2_moe": plan_qwen2_moe,
    "qwen3": plan_qwen3,
    "qwen3_moe": plan_qwen3_moe,
    "smollm3": plan_smollm3,
}
"""The supported values of `model_type`."""


def plan_model(config: Mapping[str, Any]) -> ModelPlan:
    """The plan of a `config.json`. A `quantization_config` is left to whoever reads the weights.

    Raises ModelError for a value that is missing or wrong, and
    UnsupportedError, with the attribute's name, for what a plan can't express.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError("config.json: model_type", found=describe(model_type), expected="a name")
    if model_type not in ARCHITECTURES:
        raise UnsupportedError(
            "config.json: model_type", found=describe(model_type), expected=", ".join(ARCHITECTURES)
        )
    return ARCHITECTURES[model_type](config)
