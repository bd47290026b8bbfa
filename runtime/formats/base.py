"""What every checkpoint format does with a quantized weight and with `quantization_config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.errors import InputError, ModelError, UnsupportedError
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["Load", "WeightFormat", "load_pieces", "num_groups", "refuse_keys", "stored_scales"]

Load = Callable[[str], Tensor]


class WeightFormat(Protocol):
    """A format is a module of these names; `name` is a linear's, without `.weight`.

    `SCALES_IN_MODEL_DTYPE`: engines hold the scales in the model's own type, whatever type is stored.
    """

    @property
    def SCALES_IN_MODEL_DTYPE(self) -> bool: ...

    def layout(self, name: str, scheme: QuantScheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        """The tensors that a weight [N, K] is stored as."""

    def encode(self, name: str, tensor: QuantizedTensor) -> dict[str, Tensor]:
        """The stored tensors, as `layout` says. Raises UnsupportedError for what the format can't hold."""

    def decode(self, name: str, load: Load, scheme: QuantScheme) -> QuantizedTensor:
        """Inverse of `encode`. Raises ModelError if the stored tensors do not fit together."""

    def quantization_config(
        self, schemes: Mapping[str, QuantScheme], skipped: Sequence[str]
    ) -> dict[str, Any]:
        """The block of `config.json`; `schemes` by linear, `skipped` are the linears left as they are."""

    def parse_config(self, config: Mapping[str, Any], linear_names: Sequence[str]) -> dict[str, QuantScheme]:
        """The scheme of each quantized linear. Raises UnsupportedError naming what is not read."""

    def stored_scheme(
        self, name: str, scheme: QuantScheme, dtype_of: Callable[[str], np.dtype[Any]]
    ) -> QuantScheme:
        """`scheme` with the scales' type as stored, where the configuration leaves it open."""


def stored_scales(name: str, scales: NDArray[np.float32], dtype: np.dtype[Any]) -> Tensor:
    """Scales in their stored type. Raises UnsupportedError if a scale would change."""
    with np.errstate(over="ignore"):
        stored = scales.astype(dtype)
    changed = stored.astype(np.float32) != scales
    if changed.any():
        raise UnsupportedError(
            f"scales of {name} can't be stored exactly as {dtype}",
            found=f"{changed.sum()} of {scales.size} that change, such as {scales[changed][0]:.9g}",
            hint=f"quantize with scale_dtype {dtype}",
        )
    return stored


def num_groups(name: str, scheme: QuantScheme, columns: int) -> int:
    """Groups along K of the linear `name`. Raises ModelError if the group size does not divide K."""
    try:
        return scheme.num_groups(columns)
    except InputError as error:
        raise ModelError(f"{name}: {error.what}", expected=error.expected) from error


def load_pieces(load: Load, layout: Mapping[str, TensorSpec]) -> list[NDArray[Any]]:
    """The stored tensors of one weight, in the order of `layout`.

    Raises ModelError if one has another type or shape.
    """
    pieces: list[NDArray[Any]] = []
    for name, spec in layout.items():
        piece = load(name)
        if TensorSpec.of(piece) != spec:
            raise ModelError(f"tensor {name}", found=TensorSpec.of(piece), expected=spec)
        pieces.append(piece)
    return pieces


def refuse_keys(where: str, block: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise UnsupportedError for keys whose meaning we do not know: half understood is misread."""
    if unknown := sorted(set(block) - set(known)):
        raise UnsupportedError(
            f"{where}: unknown {', '.join(map(str, unknown))}", expected=f"only {', '.join(sorted(known))}"
        )
