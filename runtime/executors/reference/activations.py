"""Quantizing a linear's input: to the values that an integer or float8 unit would multiply.

The slow, obvious form: values are rounded to codes and turned back at once.
Scales and codes are computed in float32, as compressed-tensors defines them:
scale = max|x| / 127.5 for int8 codes -128 .. 127, max|x| / 448 for float8.
"""

from __future__ import annotations

import torch

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.scheme import FLOAT8_MAX, QuantScheme

__all__ = ["fake_quantize", "input_range", "require_supported"]


def fake_quantize(x: torch.Tensor, scheme: QuantScheme, input_scale: torch.Tensor | None) -> torch.Tensor:
    """`x` [..., K] as `scheme.activation` quantizes it, in the type of `x`.

    `input_scale` is the stored scale of a static scheme. Zeros stay zeros,
    values beyond a static scale's range are clamped, NaN stays NaN.
    """
    activation = scheme.activation
    assert activation is not None
    values = x.float()
    if activation.granularity == "group":
        values = values.reshape(*x.shape[:-1], scheme.num_groups(x.shape[-1]), -1)
    if input_scale is None:
        scale = values.abs().amax(-1, keepdim=True).div_(input_range(scheme))
        scale.masked_fill_(scale == 0, 1.0)
    else:
        scale = input_scale.float()
    codes = values / scale
    if activation.type == "int":
        codes = codes.round_().clamp_(-128, 127)
    else:
        codes = codes.clamp_(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn).float()
    return codes.mul_(scale).reshape(x.shape).to(x.dtype)


def input_range(scheme: QuantScheme) -> float:
    """The input that a scale of 1 is for: half the codes' range, as compressed-tensors takes it."""
    assert scheme.activation is not None
    return 127.5 if scheme.activation.type == "int" else FLOAT8_MAX


def require_supported(name: str, scheme: QuantScheme, *, is_head: bool = False) -> None:
    """Raise UnsupportedError, naming the linear, for inputs that are quantized in another way than here."""
    activation = scheme.activation
    if activation is None:
        return
    where = f"reference executor: {name} has scheme {scheme.name}"
    if is_head:
        raise UnsupportedError(where, expected="an output head whose input is not quantized")
    if activation.bits != 8 or not activation.symmetric:
        found = f"inputs of {activation.bits} bits{'' if activation.symmetric else ' with zero points'}"
        raise UnsupportedError(where, found=found, expected="inputs of 8 bits without zero points")
