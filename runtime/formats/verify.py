"""Reading a written checkpoint back and comparing it with what was meant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gristmill.runtime.checkpoint import Checkpoint, open_checkpoint
from gristmill.runtime.errors import IntegrityError, ModelError
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import LinearPlan
from gristmill.runtime.safetensors_writer import TensorSpec
from gristmill.runtime.scheme import QuantizedTensor, QuantScheme
from gristmill.runtime.sources.base import Tensor

__all__ = ["verify_checkpoint"]


def verify_checkpoint(
    folder: Path,
    quantized: Mapping[str, QuantizedTensor],
    dense: Mapping[str, Tensor],
    kv_scales: KVScales = (),
) -> None:
    """Open `folder` as a server would and compare every tensor of `quantized` and `dense`, bit for bit.

    So are the scales of an FP8 cache.
    A symmetric weight may come back with its zero points spelled out, if they
    are all the midpoint. Raises IntegrityError naming the tensor that differs
    or can't be read.
    """
    try:
        checkpoint = open_checkpoint(folder)
        _compare_all(checkpoint, quantized, dense)
        _compare_kv_scales(checkpoint, kv_scales)
    except ModelError as error:
        raise IntegrityError(
            f"checkpoint {folder}: {error.what}", found=error.found, expected=error.expected
        ) from error


def _compare_all(
    checkpoint: Checkpoint, quantized: Mapping[str, QuantizedTensor], dense: Mapping[str, Tensor]
) -> None:
    folder = checkpoint.folder
    if differing := sorted(set(checkpoint.schemes) ^ set(quantized)):
        raise IntegrityError(
            f"checkpoint {folder}: {differing[0]}",
            found="packed" if differing[0] in checkpoint.schemes else "plain",
            expected="the other way round",
        )
    plan = checkpoint.plan
    for linear in plan.linears if plan.head is None else (*plan.linears, plan.head):
        if linear.name in quantized:
            _compare_quantized(checkpoint, linear, quantized[linear.name])
    for name, tensor in dense.items():
        _compare(folder, name, checkpoint.tensor(name), tensor)


def _compare_kv_scales(checkpoint: Checkpoint, expected: KVScales) -> None:
    found = checkpoint.kv_scales
    if len(found) != len(expected):
        raise IntegrityError(
            f"scales of keys and values in {checkpoint.folder}",
            found=f"{len(found)} layers",
            expected=f"{len(expected)} layers",
        )
    for index, (ours, meant) in enumerate(zip(found, expected, strict=True)):
        if ours != meant:
            raise IntegrityError(
                f"scales of layer {index}'s keys and values in {checkpoint.folder}",
                found=ours,
                expected=meant,
            )


def _compare_quantized(checkpoint: Checkpoint, linear: LinearPlan, expected: QuantizedTensor) -> None:
    found = checkpoint.weight(linear)
    assert isinstance(found, QuantizedTensor)
    name, folder = linear.name, checkpoint.folder
    if _meaning(found.scheme) != _meaning(expected.scheme):
        raise IntegrityError(
            f"scheme of {name} in {folder}", found=found.scheme.name, expected=expected.scheme.name
        )
    _compare(folder, f"{name} (codes)", found.codes, expected.codes)
    _compare(folder, f"{name} (scales)", found.scales, expected.scales)
    _compare(folder, f"{name} (zero points)", _zero_points(found), _zero_points(expected))
    if found.global_scale != expected.global_scale:
        raise IntegrityError(
            f"global scale of {name} in {folder}", found=found.global_scale, expected=expected.global_scale
        )
    if found.input_scale != expected.input_scale:
        raise IntegrityError(
            f"input scale of {name} in {folder}", found=found.input_scale, expected=expected.input_scale
        )


def _meaning(scheme: QuantScheme) -> tuple[object, ...]:
    """What a format may not change; zero points are compared as they are stored."""
    return scheme.type, scheme.bits, scheme.group_size, scheme.activation


def _zero_points(tensor: QuantizedTensor) -> Tensor:
    if tensor.zero_points is not None:
        return tensor.zero_points
    return np.full(tensor.scales.shape, tensor.scheme.midpoint, np.uint8)


def _compare(folder: Path, name: str, found: Tensor, expected: Tensor) -> None:
    if TensorSpec.of(found) != TensorSpec.of(expected):
        raise IntegrityError(
            f"tensor {name} in {folder}", found=TensorSpec.of(found), expected=TensorSpec.of(expected)
        )
    if found.tobytes() != expected.tobytes():
        raise IntegrityError(f"tensor {name} in {folder} has other values than were written")
