"""What the codes of float weights mean."""

from __future__ import annotations

import torch

__all__ = ["float_values"]

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def float_values(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 values of uint8 `codes` of any shape: float8 (E4M3), or with 4 bits float4 (E2M1)."""
    if bits == 8:
        return codes.view(torch.float8_e4m3fn).float()
    return torch.tensor([*_E2M1, *(-value for value in _E2M1)])[codes.int()]
