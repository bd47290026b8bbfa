"""The `quantize` block of a recipe: schemes, methods, and the layers they apply to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from gristmill.recipes.patterns import compile_pattern
from gristmill.recipes.refusals import refusal
from gristmill.runtime.errors import RecipeError

__all__ = [
    "NAMED_SCHEMES",
    "AwqSettings",
    "GptqSettings",
    "Method",
    "Override",
    "QuantizeSettings",
    "SignRoundSettings",
]

Method = Literal["rtn", "gptq", "awq", "signround"]
Bits = Literal[4, 8]

_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

NAMED_SCHEMES: Mapping[str, tuple[Bits, bool]] = MappingProxyType(
    {"W4A16": (4, True), "W4A16_ASYM": (4, False), "W8A16": (8, True), "W8A16_ASYM": (8, False)}
)
"""Named schemes as (bits, symmetric); the group size is always written out."""


def _readable_pattern(pattern: str) -> str:
    try:
        compile_pattern(pattern)
    except RecipeError as error:
        raise refusal(str(error.expected)) from error
    return pattern


def _group_size(size: int) -> int:
    if size < 1 and size != -1:
        raise refusal("a positive number, or -1 for one group a row")
    return size


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_readable_pattern)]
GroupSize = Annotated[int, AfterValidator(_group_size)]


class Override(BaseModel):
    """Other settings for the layers that match."""

    model_config = _CONFIG

    match: tuple[Pattern, ...] = Field(min_length=1, description="a pattern or a list of them")
    bits: Bits | None = Field(default=None, description="4 or 8")
    group_size: GroupSize | None = Field(default=None, description="input columns that share a scale")
    symmetric: bool | None = Field(default=None, description="whether the zero point is fixed")

    @field_validator("match", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that this override gives."""
        return self.model_dump(exclude={"match"}, exclude_none=True)


class GptqSettings(BaseModel):
    """Settings of GPTQ (Frantar et al., arXiv 2210.17323)."""

    model_config = _CONFIG

    damping: float = Field(
        default=0.01, gt=0, le=1, description="share of the mean diagonal added to the Hessian"
    )
    act_order: bool = Field(default=True, description="quantize the columns of the largest inputs first")
    search_grid: bool = Field(default=True, description="choose each range by its weighted error")


class AwqSettings(BaseModel):
    """Settings of AWQ (Lin et al., arXiv 2306.00978)."""

    model_config = _CONFIG

    exponents: int = Field(default=20, ge=1, le=100, description="steps of the scale search")
    search_clip: bool = Field(default=True, description="search a clipping range for each group")


class SignRoundSettings(BaseModel):
    """Settings of SignRound (Cheng et al., arXiv 2309.05516)."""

    model_config = _CONFIG

    iterations: int = Field(default=150, ge=1, le=10_000, description="training steps a block")
    learning_rate: float = Field(default=0.01, ge=0, le=1, description="first step of a weight, in codes")
    scale_learning_rate: float = Field(default=0.002, ge=0, le=1, description="first step of a scale's gain")


_METHOD_SETTINGS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {"gptq": GptqSettings, "awq": AwqSettings, "signround": SignRoundSettings}
)


def _missing_without_scheme(info: ValidationInfo) -> Any:
    """A placeholder where another fault is reported already; otherwise the refusal."""
    if "scheme" not in info.data:
        return 4 if info.field_name == "bits" else True
    if info.field_name == "bits":
        raise refusal("a scheme, or bits and symmetric spelled out", found="neither")
    if "bits" not in info.data:
        return True
    raise refusal("true or false beside bits", found="nothing")


class QuantizeSettings(BaseModel):
    """What each layer becomes, and how.

    A scheme is named, or spelled out as `bits` and `symmetric`; both at once
    must agree. `bits` and `symmetric` are always filled in here.
    """

    model_config = _CONFIG

    scheme: Literal["W4A16", "W4A16_ASYM", "W8A16", "W8A16_ASYM"] | None = Field(
        default=None, description="a named scheme, instead of bits and symmetric"
    )
    bits: Bits = Field(default=None, validate_default=True, description="4 or 8")
    group_size: GroupSize = Field(description="input columns that share a scale; -1 for the whole row")
    symmetric: bool = Field(
        default=None, validate_default=True, description="whether the zero point is fixed"
    )
    method: Method = Field(description="rtn, gptq, awq or signround")
    skip: tuple[Pattern, ...] = Field(default=("lm_head",), description="layers left as they are")
    overrides: tuple[Override, ...] = Field(default=(), description="layers that get other settings")
    gptq: GptqSettings | None = Field(default=None, validate_default=True, description="settings of gptq")
    awq: AwqSettings | None = Field(default=None, validate_default=True, description="settings of awq")
    signround: SignRoundSettings | None = Field(
        default=None, validate_default=True, description="settings of signround"
    )

    @field_validator("bits", "symmetric", mode="before")
    @classmethod
    def _agree_with_scheme(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill the field in from the named scheme, or hold it against it."""
        is_symmetry = info.field_name == "symmetric"
        scheme = info.data.get("scheme")
        if scheme is None:
            return value if value is not None else _missing_without_scheme(info)
        meant = NAMED_SCHEMES[scheme][is_symmetry]
        if type(value) is type(meant) and value != meant:
            raise refusal(f"{str(meant).lower()}, as {scheme} says, or no scheme at all")
        return meant if value is None else value

    @field_validator("overrides")
    @classmethod
    def _change_something(cls, overrides: tuple[Override, ...]) -> tuple[Override, ...]:
        for override in overrides:
            if not override.changes:
                raise refusal(
                    "bits, group_size or symmetric",
                    found=f"no setting for {', '.join(override.match)}",
                )
        return overrides

    @field_validator("gptq", "awq", "signround")
    @classmethod
    def _settings_of_used_methods(cls, value: Any, info: ValidationInfo) -> Any:
        """Defaults for the method in use; settings of another method are refused."""
        if "method" not in info.data or info.field_name is None:
            return value
        if info.field_name == info.data["method"]:
            return value or _METHOD_SETTINGS[info.field_name]()
        if value is not None:
            raise refusal(
                f"no {info.field_name} block", found=f"settings of {info.field_name}, which is not the method"
            )
        return None
