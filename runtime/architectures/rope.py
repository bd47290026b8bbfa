"""Rotary frequencies from a `config.json`, in the layouts of transformers 4 and 5.

Version 4 has `rope_theta` and, for longer contexts, `rope_scaling`; version 5
has one `rope_parameters` with both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.runtime.architectures.config import (
    describe,
    read_choice,
    read_float,
    read_int,
    read_switch,
)
from gristmill.runtime.errors import ModelError, UnsupportedError
from gristmill.runtime.model_plan import RopePlan

__all__ = ["read_max_positions", "read_rope"]

_THETA = 10_000.0
_COMMON_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True, slots=True)
class _RopeSettings:
    """The rope object of a configuration; `section` is its key."""

    config: Mapping[str, Any]
    section: str

    @property
    def given(self) -> Mapping[str, Any]:
        return self.config.get(self.section) or {}

    @property
    def type(self) -> str:
        key = "rope_type" if self.given.get("rope_type") is not None else "type"
        return read_choice(self.config, f"{self.section}.{key}", _ROPE_TYPES, "default")

    @property
    def original_positions(self) -> int:
        return read_int(self.config, f"{self.section}.original_max_position_embeddings")

    def number(self, key: str, default: float | None = None) -> float:
        return read_float(self.config, f"{self.section}.{key}", default)


def read_rope(config: Mapping[str, Any], head_dim: int, theta: float = _THETA) -> RopePlan:
    """The rotary embedding that a configuration asks for; `theta` is the family's default base.

    Raises UnsupportedError for a rope type whose frequencies change with the
    length of the sequence (`dynamic`, `longrope`), or that is unknown.
    """
    if head_dim % 2:
        raise ModelError(
            "config.json: head_dim", found=head_dim, expected="an even number, for rotary embeddings"
        )
    settings = _read_settings(config)
    base = settings.number("rope_theta", read_float(config, "rope_theta", theta))
    if base <= 1:
        raise ModelError("config.json: rope_theta", found=base, expected="more than 1")
    frequencies = [base ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    scaled, attention_factor = _ROPE_TYPES[settings.type].scale(settings, frequencies, base)
    return RopePlan(head_dim, tuple(scaled), attention_factor)


def read_max_positions(config: Mapping[str, Any]) -> int:
    """Positions that the model can see: `max_position_embeddings`, or what yarn extends it to."""
    positions = read_int(config, "max_position_embeddings")
    settings = _read_settings(config)
    if settings.type != "yarn":
        return positions
    return max(positions, int(settings.original_positions * settings.number("factor")))


def _read_settings(config: Mapping[str, Any]) -> _RopeSettings:
    """The one rope object, checked for keys that its type does not have; it may be absent."""
    sections = [key for key in ("rope_parameters", "rope_scaling") if config.get(key)]
    if not sections:
        return _RopeSettings(config, "rope_parameters")
    for section in sections:
        if not isinstance(config[section], Mapping):
            raise ModelError(f"config.json: {section}", found=describe(config[section]), expected="an object")
    if len(sections) == 2 and config["rope_parameters"] != config["rope_scaling"]:
        raise ModelError("config.json: rope_parameters and rope_scaling contradict each other")
    settings = _RopeSettings(config, sections[0])
    known = _COMMON_KEYS | _ROPE_TYPES[settings.type].keys
    for key, value in settings.given.items():
        if key not in known and value is not None:
            raise UnsupportedError(
                f"config.json: {settings.section}.{key} of rope type {settings.type} is not understood",
                found=describe(value),
                expected=", ".join(sorted(known)),
            )
    if settings.number("partial_rotary_factor", 1.0) != 1:
        raise UnsupportedError(
            f"config.json: {settings.section}.partial_rotary_factor",
            found=settings.given["partial_rotary_factor"],
            expected="1.0",
        )
    return settings


_Scaled = tuple[list[float], float]
"""Frequencies and the factor on cosines and sines."""


def _default(settings: _RopeSettings, frequencies: list[float], base: float) -> _Scaled:
    return frequencies, 1.0


def _linear(settings: _RopeSettings, frequencies: list[float], base: float) -> _Scaled:
    """Position interpolation (Chen et al. 2023, eq. 4)."""
    factor = settings.number("factor")
    return [frequency / factor for frequency in frequencies], 1.0


def _llama3(settings: _RopeSettings, frequencies: list[float], base: float) -> _Scaled:
    """Llama 3.1: interpolate long wavelengths, keep short ones, blend between."""
    factor, original = settings.number("factor"), settings.original_positions
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if high <= low:
        raise ModelError(
            f"config.json: {settings.section}.high_freq_factor",
            found=high,
            expected=f"more than low_freq_factor {low}",
        )

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - kept) * frequency / factor + kept * frequency

    return [scaled(frequency) for frequency in frequencies], 1.0


def _yarn(settings: _RopeSettings, frequencies: list[float], base: float) -> _Scaled:
    """YaRN's NTK-by-parts interpolation (Peng et al. 2023, section 3.2 and eq. 22)."""
    factor, original = settings.number("factor"), settings.original_positions
    fast, slow = settings.number("beta_fast", 32.0), settings.number("beta_slow", 1.0)
    if fast < slow:
        raise ModelError(
            f"config.json: {settings.section}.beta_fast", found=fast, expected=f"at least beta_slow {slow}"
        )
    size = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        """The channel that makes `turns` turns over the original length."""
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(fast), dimension(slow)
    if read_switch(settings.config, f"{settings.section}.truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = (high - low) or 0.001

    def scaled(index: int, frequency: float) -> float:
        interpolated = min(max((index - low) / width, 0.0), 1.0)
        return interpolated * frequency / factor + (1 - interpolated) * frequency

    frequencies = [scaled(index, frequency) for index, frequency in enumerate(frequencies)]
    return frequencies, _yarn_attention_factor(settings, factor)


def _yarn_attention_factor(settings: _RopeSettings, factor: float) -> float:
    """The stated factor, or DeepSeek's ratio of two temperatures, or the paper's one."""

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    inferred = temperature(1.0)
    if settings.given.get("mscale") and settings.given.get("mscale_all_dim"):
        inferred = temperature(settings.number("mscale")) / temperature(settings.number("mscale_all_dim"))
    return settings.number("attention_factor", inferred)


@dataclass(frozen=True, slots=True)
class _RopeType:
    scale: Callable[[_RopeSettings, list[float], float], _Scaled]
    keys: frozenset[str] = frozenset()


_ROPE_TYPES: Mapping[str, _RopeType] = {
    "default": _RopeType(_default),
    "linear": _RopeType(_linear, frozenset({"factor"})),
    "llama3": _RopeType(
        _llama3,
        frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    ),
    "yarn": _RopeType(
        _yarn,
        frozenset(
            {
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            }
        ),
    ),
}
