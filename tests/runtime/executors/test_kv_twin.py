"""The reference executor's quantized cache and the native one's say the same, with calibrated scales too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.executors.base import KVCacheConfig, KVDtype, SequenceStep
from gristmill.runtime.executors.native import executor as native_executor
from gristmill.runtime.executors.native.model_spec import model_spec
from gristmill.runtime.executors.reference.executor import ReferenceExecutor
from gristmill.runtime.executors.reference.kv_twin import (
    hadamard,
    keys_through_cache,
    values_through_cache,
)
from gristmill.runtime.formats.write import write_checkpoint
from gristmill.runtime.kernels import _native
from gristmill.runtime.kv_scales import KVScales, LayerKVScales
from gristmill.runtime.sources.hf_folder import HfFolder
from tests.runtime.executors.native.tiny_engines import (
    RoundedHead,
    all_rows,
    compiled,
    open_executor,
    random_tokens,
    relative_error,
    write_tiny,
)

# Of the logits of a float32 model: both round the head's input. The cache itself costs 0.09 (fp8) and
# 0.018 (int8).
LIMIT = 0.003
SCALES: dict[str, KVScales] = {
    "none": (),
    "tensor": (LayerKVScales((0.0625,), (0.015625,)), LayerKVScales((0.04,), (0.03,))),
    "head": (LayerKVScales((0.05, 0.002), (0.02, 0.001)), LayerKVScales((0.04, 0.03), (0.03, 0.05))),
}
TOKENS = random_tokens(11, 70)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny model's folder with scales by name."""
    folder = tmp_path_factory.mktemp("twin")
    source = HfFolder(write_tiny(folder, "shared key heads", "plain", dtype="float32"))

    def write(name: str) -> Path:
        out = folder / name
        if not out.exists():
            write_checkpoint(out, source, {}, {}, "compressed-tensors", kv_scales=SCALES[name])
        return out

    return write


def twin(folder: Path, kv: KVDtype) -> NDArray[np.float32]:
    source = RoundedHead(open_checkpoint(folder))
    return all_rows(ReferenceExecutor(source, KVCacheConfig(8, 16, kv), "float32"), TOKENS)


@pytest.mark.parametrize(
    ("kv", "scales"),
    [("fp8", "none"), ("fp8", "tensor"), ("fp8", "head"), ("int8", "none"), ("int4", "none")],
)
@pytest.mark.parametrize("instruction_set", [_native.instruction_sets()[0], ""])
def test_native_gives_what_its_twin_gives(
    checkpoint: Callable[[str], Path], tmp_path: Path, kv: Any, scales: str, instruction_set: str
) -> None:
    folder = checkpoint(scales)
    executor = open_executor(
        compiled(folder, tmp_path), kv=kv, compute="bfloat16", instruction_set=instruction_set
    )
    assert relative_error(all_rows(executor, TOKENS), twin(folder, kv)) < LIMIT


@pytest.mark.parametrize("scales", ["tensor", "head"])
def test_scales_change_what_both_say(checkpoint: Callable[[str], Path], scales: str) -> None:
    """So that agreement does not come from both ignoring them."""
    assert relative_error(twin(checkpoint(scales), "fp8"), twin(checkpoint("none"), "fp8")) > 2 * LIMIT


@pytest.mark.parametrize("scales", SCALES)
def test_both_say_which_scales_they_use(
    checkpoint: Callable[[str], Path], tmp_path: Path, scales: str
) -> None:
    opened = open_checkpoint(checkpoint(scales))
    engine = compiled(checkpoint(scales), tmp_path)
    for kv, expected in (("fp8", opened.kv_scales), ("int8", ())):
        dtype: Any = kv
        reference = ReferenceExecutor(opened, KVCacheConfig(2, 16, dtype))
        for executor in (reference, open_executor(engine, kv=dtype, blocks=2)):
            assert executor.info.kv_scales == expected
            assert (f"scales by {scales}" in executor.info.kernels["attention"]) == bool(expected)


def test_scales_that_do_not_arrive_are_refused_by_layer(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_one(engine: Any) -> dict[str, Any]:
        spec = model_spec(engine)
        spec["layers"][1]["value_scales"] = [1.0, 1.0]
        return spec

    engine = compiled(checkpoint("tensor"), tmp_path)
    monkeypatch.setattr(native_executor, "model_spec", lose_one)
    with pytest.raises(IntegrityError, match="scales of layer 1's values"):
        open_executor(engine, kv="fp8")


@pytest.mark.parametrize("kv", ["fp8", "int8", "int4"])
def test_chunks_and_decodes_read_what_a_whole_prompt_wrote(
    checkpoint: Callable[[str], Path], kv: Any
) -> None:
    opened = open_checkpoint(checkpoint("none"))
    executor = ReferenceExecutor(opened, KVCacheConfig(8, 16, kv), "float32")
    whole = all_rows(executor, TOKENS)
    table = range(8)
    executor.execute([SequenceStep(TOKENS[:37], 0, table, "none")])
    executor.execute([SequenceStep(TOKENS[37:-1], 37, table, "none")])
    (last,) = executor.execute([SequenceStep(TOKENS[-1:], len(TOKENS) - 1, table)])
    np.testing.assert_allclose(last, whole[-1], atol=2e-4)


def test_fp8_is_rounded_in_steps_of_the_scale_and_cut_at_its_end() -> None:
    scales = torch.tensor([0.5, 2.0])
    x = torch.tensor([[[1.0, -1e9, 0.26]], [[1.0, -1e9, 0.26]]]).transpose(0, 1)
    expected = np.array([1, -448 * 0.5, 0.25]), np.array([1, -448 * 2.0, 0.25])
    found = keys_through_cache(x, "fp8", scales)
    np.testing.assert_array_equal(found[0, 0].numpy(), expected[0])
    np.testing.assert_allclose(found[0, 1].numpy(), expected[1], rtol=0.05)


@pytest.mark.parametrize(("size", "block"), [(64, 64), (96, 32), (7, 1)])
def test_keys_are_rotated_by_a_hadamard_matrix_in_blocks_that_fit(size: int, block: int) -> None:
    sylvester: NDArray[Any] = np.ones((1, 1))
    while len(sylvester) < block:
        sylvester = np.kron([[1, 1], [1, -1]], sylvester)
    expected = np.kron(np.eye(size // block), sylvester / block**0.5)
    np.testing.assert_allclose(hadamard(torch.eye(size)).numpy(), expected, atol=1e-6)


def test_a_large_channel_of_fp8_keys_costs_its_share_of_the_rotated_rest() -> None:
    """Without the rotation a query that reads the large channel would see 3 % of it come and go."""
    x = torch.randn(256, 1, 64, generator=torch.Generator().manual_seed(1))
    x[..., 5] += 50
    error = (keys_through_cache(x, "fp8", torch.tensor([0.125])) - x)[..., 5]
    plain = (values_through_cache(x, "fp8", torch.tensor([0.125])) - x)[..., 5]
    assert error.square().mean() < plain.square().mean() / 4


@pytest.mark.parametrize(
    ("through", "kv", "most"),
    [
        (keys_through_cache, "int8", 127),
        (values_through_cache, "int8", 127),
        (keys_through_cache, "int4", 127),
        (values_through_cache, "int4", 7),
    ],
)
def test_integers_have_a_scale_for_each_token_and_head(through: Any, kv: str, most: int) -> None:
    x = torch.randn(5, 2, 24, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [100.0]])
    x[3] = 0
    found = through(x, kv, torch.ones(2))
    if through is keys_through_cache:
        x, found = hadamard(x), hadamard(found)
    step = x.abs().amax(dim=-1, keepdim=True) / most
    assert ((found - x).abs() <= step * 0.5001).all()
    codes = found / step.clamp_min(1e-9)
    assert torch.allclose(codes, codes.round(), atol=1e-4)
