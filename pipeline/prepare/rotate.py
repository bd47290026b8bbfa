"""Rotations folded into the weights: QuaRot (Ashkboos et al. 2024, arXiv 2404.00456), R1 and R2 of SpinQuant.

Between two norms without scales, the residual stream may be turned by any
orthogonal Q: whatever writes to it is multiplied by Q, whatever reads it by
Q^T, and the model says the same. Outliers are spread over all channels, and
round better. The values between v and o are turned in the same way, each head
by itself (R2). Nothing is computed at run time, so any engine serves the result.

The norms' scales have to go first, into the linears that read them. That of the
last norm goes into the output head: a tied head becomes a tensor of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import InternalError, UnsupportedError
from gristmill.runtime.executors.reference.blocks import to_numpy, to_torch
from gristmill.runtime.model_plan import LayerPlan, LinearPlan, ModelPlan, NormPlan
from gristmill.runtime.sources.base import ModelSource, Tensor

__all__ = ["RotatedSource", "orthogonal_matrix"]

_SEED = 0
_ROWS = 4096
"""Rows of a large tensor that are turned at a time."""


def orthogonal_matrix(size: int, seed: int = _SEED) -> torch.Tensor:
    """A dense orthogonal matrix, float32 [size, size]: a Hadamard matrix with random signs.

    Sylvester's construction needs a power of two. For 2^k * m with an odd m it
    is the Kronecker product with the m x m matrix of the discrete cosine
    transform, so that each output channel still has a part of every input.
    """
    odd = size // (size & -size)
    matrix = _cosines(odd)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size, 1), generator=generator).double().mul_(2).sub_(1)
    return (signs * matrix / math.sqrt(size // odd)).float()


def _cosines(size: int) -> torch.Tensor:
    """The orthonormal DCT-II, float64 [size, size]."""
    position = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * position[:, None] * (position + 0.5) / size) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


@dataclass(frozen=True, slots=True)
class _Fold:
    """How a tensor [N, K] of the rotated model comes from the original's.

    tensor   its name there
    norm     the norm whose scale its columns take over
    inputs   the matrix that turns each row, in blocks of its size
    outputs  the same for each column
    """

    tensor: str
    norm: str | None = None
    inputs: torch.Tensor | None = None
    outputs: torch.Tensor | None = None


class RotatedSource:
    """A `ModelSource` that is turned tensor by tensor, as each is asked for; nothing is kept.

    Raises UnsupportedError for a model whose rotated form its own
    configuration can't express.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._original = plan_model(source.config)
        self._config = {**source.config, "tie_word_embeddings": False}
        self.plan: ModelPlan = plan_model(self._config)
        if self.plan.head is None:
            raise UnsupportedError(f"rotate: {source.name} can't have an output head of its own")
        self._folds = dict(_folds(self._original, self.plan))
        self._norms = {f"{norm.name}.weight" for norm in _stream_norms(self.plan)}

    @property
    def name(self) -> str:
        """The original's."""
        return self._source.name

    @property
    def revision(self) -> str | None:
        """The original's."""
        return self._source.revision

    @property
    def config(self) -> Mapping[str, Any]:
        """The original's, with a head of its own."""
        return self._config

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The original's, and the head's."""
        return {**self._source.tensor_shapes(), **self.plan.tensor_shapes()}

    def load(self, name: str) -> Tensor:
        """One tensor of the rotated model, in the original's type. Raises ModelError."""
        fold = self._folds.get(name)
        if fold is None:
            kept = self._source.load(name)
            return np.ones_like(kept) if name in self._norms else kept
        stored = to_torch(self._source.load(fold.tensor))
        scale = None if fold.norm is None else to_torch(self._source.load(fold.norm)).float()
        result = torch.empty_like(stored)
        rows = _ROWS if fold.outputs is None else len(stored)
        for part, place in zip(torch.split(stored, rows), torch.split(result, rows), strict=True):
            place.copy_(_turned(part.float().view(len(part), -1), scale, fold).view_as(part))
        return to_numpy(result)

    def side_files(self) -> Mapping[str, bytes]:
        """The original's."""
        return self._source.side_files()

    def digest(self) -> str:
        """`sha256:...` of the original's digest and of what is done to it."""
        return f"sha256:{hashlib.sha256(f'hadamard {_SEED} {self._source.digest()}'.encode()).hexdigest()}"


def _turned(weight: torch.Tensor, scale: torch.Tensor | None, fold: _Fold) -> torch.Tensor:
    """`weight` [N, K] times the norm's scale, then turned on both sides, float32."""
    if scale is not None:
        weight = weight * scale
    if fold.inputs is not None:
        weight = _times(weight, fold.inputs)
    return weight if fold.outputs is None else _times(weight.T, fold.outputs).T


def _times(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Each row [K], cut into blocks of the matrix' size, times `matrix`."""
    return (rows.reshape(-1, len(matrix)) @ matrix).view(rows.shape)


def _folds(original: ModelPlan, rotated: ModelPlan) -> Iterator[tuple[str, _Fold]]:
    """What happens to each tensor that changes, by its name in the rotated model."""
    stream = orthogonal_matrix(original.hidden_size)
    heads = {
        size: orthogonal_matrix(size) for size in {layer.attention.head_dim for layer in original.layers}
    }
    embedding, head = f"{original.embedding}.weight", rotated.head
    if head is None:
        raise InternalError("a rotated model has a head of its own")
    yield embedding, _Fold(embedding, inputs=stream)
    for layer in original.layers:
        yield from _layer_folds(layer, stream, heads[layer.attention.head_dim])
    yield head.weight, _Fold(original.head_weight, f"{original.final_norm.name}.weight", inputs=stream)


def _layer_folds(layer: LayerPlan, stream: torch.Tensor, head: torch.Tensor) -> Iterator[tuple[str, _Fold]]:
    attention, norm = layer.attention, f"{layer.input_norm.name}.weight"
    for linear in (attention.q, attention.k):
        yield linear.weight, _Fold(linear.weight, norm, inputs=stream)
    yield from _with_bias(attention.v, _Fold(attention.v.weight, norm, inputs=stream, outputs=head))
    yield from _with_bias(attention.o, _Fold(attention.o.weight, inputs=head, outputs=stream))
    norm = f"{layer.mlp_norm.name}.weight"
    for group in layer.mlp.scaling_groups(layer.mlp_norm):
        for linear in (*group.linears, *group.routers):
            if group.source_kind == "norm":
                yield linear.weight, _Fold(linear.weight, norm, inputs=stream)
            else:  # down, which writes to the stream
                yield from _with_bias(linear, _Fold(linear.weight, outputs=stream))


def _with_bias(linear: LinearPlan, fold: _Fold) -> Iterator[tuple[str, _Fold]]:
    """A linear whose outputs are turned, and its bias with them."""
    yield linear.weight, fold
    if linear.bias:
        yield f"{linear.name}.bias", _Fold(f"{linear.name}.bias", outputs=fold.outputs)


def _stream_norms(plan: ModelPlan) -> Iterator[NormPlan]:
    """The norms that read the residual stream."""
    yield plan.final_norm
    for layer in plan.layers:
        yield from (layer.input_norm, layer.mlp_norm)
