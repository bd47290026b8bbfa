"""The `quantize` block of a recipe: schemes, methods, and the layers they apply to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from gristmill.recipes.named_schemes import NAMED_SCHEMES, NamedScheme, SchemeName
from gristmill.recipes.patterns import compile_pattern
from gristmill.recipes.refusals import refusal
from gristmill.recipes.rules import Bits, GroupSize
from gristmill.recipes.search import SearchSettings
from gristmill.runtime.errors import RecipeError
from gristmill.runtime.scheme import ActivationScheme, ScaleDtype

__all__ = [
    "ActivationSettings",
    "AwqSettings",
    "GptqSettings",
    "Method",
    "Override",
    "QuantizeSettings",
    "SignRoundSettings",
    "SmoothQuantSettings",
]

Method = Literal["rtn", "hqq", "gptq", "awq", "signround", "smoothquant"]

_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _readable_pattern(pattern: str) -> str:
    try:
        compile_pattern(pattern)
    except RecipeError as error:
        raise refusal(str(error.expected)) from error
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_readable_pattern)]


class Override(BaseModel):
    """Other settings for the layers that match."""

    model_config = _CONFIG

    match: tuple[Pattern, ...] = Field(min_length=1, description="a pattern or a list of them")
    bits: Bits | None = Field(default=None, description="2, 3, 4, 5, 6 or 8")
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
    refine: int = Field(
        default=0, ge=0, le=100, description="rounds of improving codes and scales in turns afterwards"
    )


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


class SmoothQuantSettings(BaseModel):
    """Settings of SmoothQuant (Xiao et al., arXiv 2211.10438)."""

    model_config = _CONFIG

    strengths: int = Field(default=10, ge=1, le=100, description="steps of the migration strength")


class ActivationSettings(BaseModel):
    """How the inputs of layers are quantized, where the scheme leaves it open."""

    model_config = _CONFIG

    static: bool = Field(default=False, description="one stored scale instead of one for each token")
    percentile: float = Field(
        default=100, gt=0, le=100, description="of the values that a static scale keeps in range"
    )

    @field_validator("percentile")
    @classmethod
    def _for_static_scales(cls, percentile: float, info: ValidationInfo) -> float:
        if percentile < 100 and info.data.get("static") is False:
            raise refusal("static: true beside a percentile")
        return percentile


_METHOD_SETTINGS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "gptq": GptqSettings,
        "awq": AwqSettings,
        "signround": SignRoundSettings,
        "smoothquant": SmoothQuantSettings,
    }
)

_WEIGHT_METHODS = ("rtn", "hqq", "gptq", "awq", "signround")
_INPUT_METHODS = ("rtn", "gptq", "smoothquant")
_FLOAT_METHODS = ("rtn",)


def _methods_for(scheme: NamedScheme | None) -> tuple[str, ...]:
    """The methods that make a scheme; None stands for weight-only integers."""
    if scheme is None or scheme.is_weight_only_int:
        return _WEIGHT_METHODS
    return _FLOAT_METHODS if scheme.type == "float" else _INPUT_METHODS


def _missing_without_scheme(info: ValidationInfo) -> Any:
    """A placeholder where another fault is reported already; otherwise the refusal."""
    if "scheme" not in info.data:
        return {"bits": 4, "group_size": -1, "symmetric": True}[str(info.field_name)]
    if info.field_name == "group_size":
        raise refusal("input columns that share a scale; -1 for the whole row", found="no such key")
    if info.field_name == "bits":
        raise refusal("a scheme, or bits and symmetric spelled out", found="neither")
    if "bits" not in info.data:
        return True
    raise refusal("true or false beside bits", found="nothing")


class QuantizeSettings(BaseModel):
    """What each layer becomes, and how.

    A scheme is named, or spelled out as `bits` and `symmetric`; both at once
    must agree. `bits`, `group_size` and `symmetric` are always filled in here.
    """

    model_config = _CONFIG

    scheme: SchemeName | None = Field(
        default=None, description="a named scheme, instead of bits and symmetric"
    )
    bits: Bits = Field(default=None, validate_default=True, description="2, 3, 4, 5, 6 or 8")
    group_size: GroupSize = Field(
        default=None,
        validate_default=True,
        description="input columns that share a scale; -1 for the whole row",
    )
    symmetric: bool = Field(
        default=None, validate_default=True, description="whether the zero point is fixed"
    )
    activations: ActivationSettings | None = Field(
        default=None, validate_default=True, description="how inputs are quantized, with W8A8 and FP8"
    )
    method: Method = Field(description="rtn, hqq, gptq, awq, signround or smoothquant")
    scale: Literal["awq"] | None = Field(
        default=None, description="awq, to scale channels before gptq rounds them"
    )
    rotate: Literal["hadamard"] | None = Field(
        default=None, description="hadamard, to spread outliers over all channels first"
    )
    skip: tuple[Pattern, ...] = Field(default=("lm_head",), description="layers left as they are")
    overrides: tuple[Override, ...] = Field(default=(), description="layers that get other settings")
    search: SearchSettings | None = Field(
        default=None, description="choose widths under a budget, instead of one for all"
    )
    gptq: GptqSettings | None = Field(default=None, validate_default=True, description="settings of gptq")
    awq: AwqSettings | None = Field(default=None, validate_default=True, description="settings of awq")
    signround: SignRoundSettings | None = Field(
        default=None, validate_default=True, description="settings of signround"
    )
    smoothquant: SmoothQuantSettings | None = Field(
        default=None, validate_default=True, description="settings of smoothquant"
    )

    @property
    def activation(self) -> ActivationScheme | None:
        """How inputs are quantized; None if they are not."""
        named = None if self.scheme is None else NAMED_SCHEMES[self.scheme].activation
        if named is None or self.activations is None or not self.activations.static:
            return named
        return ActivationScheme(named.type, named.bits, "tensor", dynamic=False)

    @property
    def scale_dtype(self) -> ScaleDtype | None:
        """The type that the scheme stores scales in; None for the model's own."""
        return None if self.scheme is None else NAMED_SCHEMES[self.scheme].scale_dtype

    @property
    def type(self) -> Literal["int", "float"]:
        """Whether weights become integers or floats."""
        return "int" if self.scheme is None else NAMED_SCHEMES[self.scheme].type

    @field_validator("bits", "group_size", "symmetric", mode="before")
    @classmethod
    def _agree_with_scheme(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill the field in from the named scheme, or hold it against it."""
        scheme = info.data.get("scheme")
        meant = None if scheme is None else getattr(NAMED_SCHEMES[scheme], str(info.field_name))
        if meant is None:
            return value if value is not None else _missing_without_scheme(info)
        if type(value) is type(meant) and value != meant:
            raise refusal(f"{str(meant).lower()}, as {scheme} says, or no scheme at all")
        return meant if value is None else value

    @field_validator("activations")
    @classmethod
    def _fit_scheme(cls, value: ActivationSettings | None, info: ValidationInfo) -> ActivationSettings | None:
        """Defaults for schemes that quantize inputs; what the scheme does not leave open is refused."""
        name = info.data.get("scheme")
        named = None if name is None else NAMED_SCHEMES[name]
        if named is None or named.activation is None:
            if value is not None:
                raise refusal(
                    "no activations block", found="quantized inputs, which the scheme does not have"
                )
            return None
        is_static = not named.activation.dynamic
        if value is None:
            return ActivationSettings(static=is_static)
        if value.static != is_static and not (value.static and named.may_be_static):
            text = str(is_static).lower()
            raise refusal(f"static: {text}, as {name} says", found=f"static: {str(value.static).lower()}")
        return value

    @field_validator("method")
    @classmethod
    def _make_scheme(cls, method: str, info: ValidationInfo) -> str:
        name = info.data.get("scheme")
        possible = _methods_for(None if name is None else NAMED_SCHEMES[name])
        if "scheme" in info.data and method not in possible:
            raise refusal(" or ".join(possible), found=f"the method {method} for {name or 'weights only'}")
        return method

    @field_validator("scale")
    @classmethod
    def _before_gptq(cls, scale: str | None, info: ValidationInfo) -> str | None:
        method, name = info.data.get("method"), info.data.get("scheme")
        if scale is None or method is None:
            return scale
        if method != "gptq":
            raise refusal("the method gptq beside scale", found=f"the method {method}")
        if name is not None and not NAMED_SCHEMES[name].is_weight_only_int:
            raise refusal("a scheme of weights only beside scale", found=name)
        return scale

    @field_validator("overrides")
    @classmethod
    def _change_something(cls, overrides: tuple[Override, ...], info: ValidationInfo) -> tuple[Override, ...]:
        name = info.data.get("scheme")
        if overrides and name is not None and not NAMED_SCHEMES[name].is_weight_only_int:
            raise refusal(f"no overrides with {name}; skip leaves layers as they are", found="overrides")
        for override in overrides:
            if not override.changes:
                raise refusal(
                    "bits, group_size or symmetric",
                    found=f"no setting for {', '.join(override.match)}",
                )
        return overrides

    @field_validator("search")
    @classmethod
    def _widths_to_choose(cls, search: SearchSettings | None, info: ValidationInfo) -> SearchSettings | None:
        """A search is of weight-only integers, and the only one to choose widths."""
        name = info.data.get("scheme")
        if search is None:
            return None
        if name is not None and not NAMED_SCHEMES[name].is_weight_only_int:
            raise refusal(f"no search with {name}, whose width is fixed", found="a search")
        changes = {key for override in info.data.get("overrides", ()) for key in override.changes}
        for key in ("bits", "group_size") if search.group_size else ("bits",):
            if key in changes:
                raise refusal(
                    f"no {key} in overrides beside a search, which chooses; skip leaves layers as they are",
                    found="both",
                )
        return search

    @field_validator("gptq", "awq", "signround", "smoothquant")
    @classmethod
    def _settings_of_used_methods(cls, value: Any, info: ValidationInfo) -> Any:
        """Defaults for the methods in use; settings of another method are refused."""
        if "method" not in info.data or info.field_name is None:
            return value
        if info.field_name in (info.data["method"], info.data.get("scale")):
            return value or _METHOD_SETTINGS[info.field_name]()
        if value is not None:
            raise refusal(
                f"no {info.field_name} block", found=f"settings of {info.field_name}, which is not the method"
            )
        return None
