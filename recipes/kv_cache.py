"""The `kv_cache` block of a recipe: how keys and values are stored while the artifact is served."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from gristmill.recipes.refusals import refusal
from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.kv_scales import ScaleShare

__all__ = ["KVCacheSettings"]


class KVCacheSettings(BaseModel):
    """The format that an artifact is validated with and served in."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    dtype: KVDtype = Field(default="bfloat16", description="format of cached keys and values")
    scales: ScaleShare | None = Field(
        default=None, validate_default=True, description="what shares a calibrated scale, with fp8"
    )

    @field_validator("scales", mode="before")
    @classmethod
    def _scales_of_fp8(cls, scales: Any, info: ValidationInfo) -> Any:
        """One scale a tensor with fp8, unless heads get their own; no other format has stored scales."""
        dtype = info.data.get("dtype")
        if dtype == "fp8":
            return "tensor" if scales is None else scales
        if scales is not None and dtype is not None:
            raise refusal("no scales, or the dtype fp8", found=f"scales for {dtype}")
        return None
