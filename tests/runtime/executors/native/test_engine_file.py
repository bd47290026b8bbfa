"""An engine whose files are not exactly what they should be is refused before a kernel reads a byte."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.pipeline.compile.native_x86 import compile_native
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import ArtifactError, GristmillError, IntegrityError
from gristmill.runtime.executors.native.engine_file import (
    HEADER_BYTES,
    PLAN_FILE,
    WEIGHTS_FILE,
    header_bytes,
    plan_bytes,
    read_engine_file,
    verify_engine_file,
)
from gristmill.runtime.files import canonical_json
from gristmill.runtime.safetensors_writer import TensorSpec, write_safetensors
from tests.runtime.executors.native.tiny_engines import MIXTURES, write_tiny

Edit = Callable[[dict[str, Any]], object]

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that nothing has touched."""
    folder = tmp_path_factory.mktemp("pristine")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(0)
    shapes = plan_model(CONFIG).tensor_shapes()
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", specs, tensors.items())
    compile_native(folder, folder / "engine")
    return folder / "engine"


@pytest.fixture(scope="module")
def pristine_mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of a dense block and one with experts."""
    folder = tmp_path_factory.mktemp("mixture")
    compile_native(write_tiny(folder, "qwen2 with experts", "plain"), folder / "engine")
    return folder / "engine"


@pytest.fixture
def sparse_engine(pristine_mixture: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine_mixture, tmp_path / "engine"))


@pytest.fixture
def engine(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "engine"))


def edit_plan(folder: Path, edit: Edit) -> None:
    """Change `plan.json`, and leave the rest as a careful forger would not."""
    path = folder / PLAN_FILE
    value = json.loads(path.read_bytes())
    edit(value)
    path.write_bytes(canonical_json(value))


def edit_weights(folder: Path, offset: int, data: bytes) -> None:
    with (folder / WEIGHTS_FILE).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def refusal(folder: Path, kind: type[GristmillError] = ArtifactError) -> str:
    with pytest.raises(kind) as caught:
        read_engine_file(folder)
    assert type(caught.value) is kind
    assert "compile it again" in str(caught.value)
    return str(caught.value)


def set_field(path: str, value: Any) -> Edit:
    """An edit of the entry at a dotted path; `...` removes it, a function maps what is there."""

    def edit(plan: Any) -> None:
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in parents:
            plan = plan[key]
        if value is ...:
            del plan[last]
        else:
            plan[last] = value(plan[last]) if callable(value) else value

    return edit


def test_a_whole_engine_is_read_and_verified(pristine: Path) -> None:
    engine = read_engine_file(pristine)
    assert engine == verify_engine_file(pristine)
    assert engine.path == pristine / WEIGHTS_FILE
    assert engine.path.stat().st_size == engine.bytes
    assert len(engine.layers) == len(engine.plan.layers) == 3


def test_what_was_read_gives_the_same_bytes_again(pristine: Path) -> None:
    engine = read_engine_file(pristine)
    assert plan_bytes(engine) == (pristine / PLAN_FILE).read_bytes()
    assert header_bytes(engine) == (pristine / WEIGHTS_FILE).read_bytes()[:HEADER_BYTES]


@pytest.mark.parametrize("name", [PLAN_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named(engine: Path, name: str) -> None:
    (engine / name).unlink()
    assert f"{name} is missing" in refusal(engine)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": 1e999999}', b"null"])
def test_a_plan_file_that_is_no_json_object_is_refused(engine: Path, content: bytes) -> None:
    (engine / PLAN_FILE).write_bytes(content)
    assert PLAN_FILE in refusal(engine)


def test_a_plan_file_that_no_model_needs_is_refused_unread(engine: Path) -> None:
    with (engine / PLAN_FILE).open("r+b") as file:
        file.truncate(1 << 40)
    assert "plan.json: bytes; found 1099511627776; expected at most" in refusal(engine)


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 10**30])
def test_another_layout_version_is_refused_by_number(engine: Path, version: Any) -> None:
    edit_plan(engine, set_field("layout_version", version))
    assert f"layout version; found {version!r}; expected 1" in refusal(engine)


def test_another_layout_version_in_the_header_is_refused_by_number(engine: Path) -> None:
    edit_weights(engine, 16, struct.pack("<I", 7))
    message = refusal(engine)
    assert f"{WEIGHTS_FILE}: layout version; found 7; expected 1" in message


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("format", "other", "plan.format; found other; expected gristmill-native"),
        ("layers", ..., "missing layers"),
        ("comment", "hello", "unknown comment"),
        ("weights.sha256", "0" * 63, "64 hex digits"),
        ("weights.bytes", -1, "plan.weights.bytes"),
        ("weights.bytes", 2**70, "plan.weights.bytes"),
        ("model.hidden_size", 63, "model.final_norm.size"),
        ("embedding", None, "plan.embedding; found None"),
        ("embedding.dtype", "float16", "plan.embedding.dtype; found 'float16'"),
        ("embedding.shape", lambda shape: shape[::-1], "embedding.shape"),
        ("embedding.bytes", lambda size: size - 2, "embedding.bytes"),
        ("final_norm.dtype", "bfloat16", "final_norm.dtype; found bfloat16; expected float32"),
        ("layers", lambda layers: layers[:-1], "layers; found 2; expected 3"),
        ("layers.1.input_norm.shape", [32], "layers[1].input_norm.shape; found [32]; expected [64]"),
        ("layers.0.q_norm", {"dtype": "float32", "shape": [16], "offset": 64, "bytes": 64}, "q_norm"),
        ("layers.2.o.kind", "int2", "layers[2].o.kind"),
        ("layers.2.o.kind", "bfloat16", "layers[2].o.bytes"),
        ("layers.2.o.rows", 96, "layers[2].o.rows; found 96; expected 64"),
        ("layers.2.o.columns", 96, "layers[2].o.columns; found 96; expected 64"),
        ("layers.2.o.columns", -64, "layers[2].o.columns"),
        ("layers.2.o.group", 64, "layers[2].o: float32 weight"),
        ("layers.2.o.zero_points", True, "layers[2].o: float32 weight"),
        ("layers.2.o.bytes", 0, "layers[2].o.bytes"),
        ("layers.2.o.in_features", 63, "layers[2].o.in_features"),
        ("layers.2.o.bias", {"dtype": "float32", "shape": [64], "offset": 64, "bytes": 256}, "o.bias"),
        ("layers.2.qkv.outputs", [64, 32], "layers[2].qkv.outputs"),
        ("layers.2.qkv.outputs", [32, 64, 32], "layers[2].qkv.outputs"),
        ("layers.2.gate_up.rows", 128, "layers[2].gate_up.rows; found 128; expected 256"),
        ("head.group", 48, "head: int8 weight: group; found 48"),
        ("head.group", 32, "head.bytes"),
        ("head.group", 0, "head: int8 weight: group"),
        ("head.zero_points", True, "head.bytes"),
        ("model.final_norm.eps", 0, "model.final_norm.eps; found 0.0; expected a positive number"),
        ("model.layers.1.mlp_norm.eps", -1e-5, "eps of model.layers.1.post_attention_layernorm"),
        ("model.layers.0.attention.scale", -0.25, "model.layers[0].attention.scale; found -0.25"),
        ("model.layers.0.attention.logit_softcap", 0, "model.layers[0].attention.logit_softcap; found 0.0"),
        ("model.layers.2.attention.rope.attention_factor", 0, "layers[2].attention.rope.attention_factor"),
    ],
)
def test_an_entry_that_does_not_follow_from_the_model_is_refused(
    engine: Path, path: str, value: Any, words: str
) -> None:
    edit_plan(engine, set_field(path, value))
    assert words in refusal(engine)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("layers.0.down.offset", lambda offset: offset + 32, "a multiple of 64"),
        ("layers.0.down.offset", -64, "layers[0].down.offset; found -64"),
        ("layers.0.down.offset", 0, "the end of the header"),
        ("layers.0.down.offset", 1.5, "an integer"),
        ("layers.0.down.offset", 2**40, "inside the file"),
        ("layers.0.down.offset", 2**62, "inside the file"),
        ("layers.0.down.offset", lambda offset: offset - 64, "the end of"),
        ("layers.1.mlp_norm.offset", 8192, "the end of embedding"),
        ("head.offset", lambda offset: offset + 2**20, "inside the file"),
    ],
)
def test_a_place_outside_the_file_or_inside_another_tensor_is_refused(
    engine: Path, path: str, value: Any, words: str
) -> None:
    edit_plan(engine, set_field(path, value))
    assert words in refusal(engine)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("layers.0.mixture", ..., "missing down, gate_up"),
        ("layers.0.mixture.gate", None, "unknown gate"),
        ("layers.0", lambda layer: {**layer, "gate_up": layer["o"]}, "missing down"),
        ("layers.1", lambda layer: {**layer, "mixture": None}, "unknown mixture"),
        ("layers", lambda layers: layers[::-1], "layers[0]; found one MLP"),
        ("layers.0.mixture.experts", lambda experts: experts[1:], "mixture.experts; found 5; expected 6"),
        ("layers.0.mixture.shared", None, "mixture.shared; found nothing"),
        ("layers.0.mixture.router.kind", "bfloat16", "router.kind; found bfloat16; expected float32"),
        ("layers.0.mixture.router.outputs", [6], "router.outputs"),
        ("layers.0.mixture.router.bytes", 64, "router.bytes"),
        ("layers.0.mixture.experts.2.down.rows", 96, "mixture.experts[2].down.rows"),
        ("layers.0.mixture.experts.2.gate_up.columns", 32, "mixture.experts[2].gate_up.columns"),
        ("layers.0.mixture.shared.gate_up.outputs", [64, 65], "mixture.shared.gate_up.outputs"),
        ("layers.0.mixture.experts.5.down.offset", 8192, "the end of"),
        ("layers.0.mixture.shared.down.offset", 2**40, "inside the file"),
        ("model.layers.0.mlp.top_k", 7, "layers[0].mlp.top_k; found 7; expected 1 to the 6 experts"),
        ("model.layers.0.mlp.top_k", 0, "layers[0].mlp.top_k"),
        ("model.layers.0.mlp.router.out_features", 5, "layers[0].mlp.router.out_features"),
        ("model.layers.0.mlp.router.bias", True, "layers[0].mlp.router.bias"),
        ("model.layers.0.mlp.shared", None, "shared_gate beside a shared expert"),
        ("model.layers.0.mlp.shared_gate.out_features", 2, "layers[0].mlp.shared_gate.out_features"),
        ("model.layers.0.mlp.experts.3.down.in_features", 96, "mlp.experts[3].down.in_features"),
        ("model.layers.0.mlp.shared.up.in_features", 96, "mlp.shared.up.in_features"),
    ],
)
def test_an_entry_of_a_mixture_that_does_not_follow_from_the_model_is_refused(
    sparse_engine: Path, path: str, value: Any, words: str
) -> None:
    read_engine_file(sparse_engine)
    edit_plan(sparse_engine, set_field(path, value))
    assert words in refusal(sparse_engine)


@pytest.mark.parametrize("shape", ["a window", "qwen3 with experts"])
def test_no_number_of_a_plan_file_ends_the_process(shape: str, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "decoder_sparse_step": 1, "num_experts": 2, "num_experts_per_tok": 1}
    small = sizes if shape in MIXTURES else {"num_hidden_layers": 1}
    compile_native(write_tiny(tmp_path, shape, "mixed", **small), tmp_path / "engine")
    command = [sys.executable, "-m", "tests.runtime.executors.native.changed_plans"]
    done = subprocess.run([*command, str(tmp_path / "engine")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes["refused"] > outcomes["ran"] > 0


@pytest.mark.parametrize("size", [0, 20, HEADER_BYTES - 1, HEADER_BYTES, -1])
def test_a_truncated_weights_file_is_refused(engine: Path, size: int) -> None:
    path = engine / WEIGHTS_FILE
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size if size >= 0 else whole + size)
    message = refusal(engine, IntegrityError)
    assert f"expected {whole}" in message


def test_a_weights_file_with_more_behind_it_is_refused(engine: Path) -> None:
    with (engine / WEIGHTS_FILE).open("ab") as file:
        file.write(b"more")
    assert "bytes; found" in refusal(engine, IntegrityError)


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (0, b"X", "first bytes"),
        (20, b"\1", "size in the header"),
        (28, b"\0\0\0\0", "sha256 of plan.json"),
        (60, b"\1", "unknown fields"),
        (HEADER_BYTES - 1, b"\1", "unknown fields"),
    ],
)
def test_a_damaged_header_is_refused(engine: Path, offset: int, data: bytes, words: str) -> None:
    edit_weights(engine, offset, data)
    assert words in refusal(engine, IntegrityError)


def test_a_plan_of_another_engine_is_refused(engine: Path) -> None:
    edit_plan(engine, set_field("model.layers.0.attention.scale", 0.5))
    assert "sha256 of plan.json in the header" in refusal(engine, IntegrityError)


def test_a_changed_weight_is_found_by_the_full_check_alone(engine: Path) -> None:
    head = read_engine_file(engine).head
    with (engine / WEIGHTS_FILE).open("r+b") as file:
        file.seek(head.offset)
        before = file.read(1)
        file.seek(head.offset)
        file.write(bytes([before[0] ^ 1]))
    read_engine_file(engine)
    with pytest.raises(
        IntegrityError, match=r"weights\.bin: sha256; found [0-9a-f]{64}; expected [0-9a-f]{64}"
    ):
        verify_engine_file(engine)


def test_a_changed_checksum_is_found_by_the_full_check(engine: Path) -> None:
    edit_plan(engine, set_field("weights.sha256", "0" * 64))
    with pytest.raises(IntegrityError, match="sha256"):
        verify_engine_file(engine)


def test_a_folder_in_the_place_of_a_file_is_refused(engine: Path) -> None:
    (engine / WEIGHTS_FILE).unlink()
    (engine / WEIGHTS_FILE).mkdir()
    assert WEIGHTS_FILE in refusal(engine)
