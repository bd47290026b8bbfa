"""The block in `config.json` is understood by compressed-tensors, and read back or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.formats.compressed_tensors import parse_config, quantization_config
from gristmill.runtime.scheme import QuantScheme

W4 = QuantScheme(4, 32, symmetric=False)
W8 = QuantScheme(8, -1, symmetric=True)
NAMES = ["layers.0.q_proj", "layers.0.up_proj", "layers.1.q_proj", "layers.1.up_proj"]


class Layer(torch.nn.Module):
    """Two linears, as in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(64, 64, bias=False)
        self.up_proj = torch.nn.Linear(64, 64, bias=False)


class Model(torch.nn.Module):
    """The model of NAMES, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.lm_head = torch.nn.Linear(64, 8, bias=False)


def block(weights: object = None, **changes: object) -> dict[str, Any]:
    """A valid block with one group, changed."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "strategy": "group"}}
    group["weights"] |= weights or {}  # type: ignore[operator]
    base = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    }
    return base | changes


def understood_by_the_library(config: dict[str, Any]) -> dict[str, tuple[int, bool, str]]:
    model = Model()
    apply_quantization_config(model, QuantizationConfig.model_validate(config), show_progress=False)
    quantized = {name: getattr(module, "quantization_scheme", None) for name, module in model.named_modules()}
    return {
        name: (scheme.weights.num_bits, scheme.weights.symmetric, scheme.weights.strategy)
        for name, scheme in quantized.items()
        if scheme is not None
    }


def test_one_scheme_targets_the_class_and_ignores_the_rest() -> None:
    config = quantization_config(dict.fromkeys(NAMES[:3], W4), [NAMES[3], "lm_head"])
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["ignore"] == [NAMES[3], "lm_head"]
    assert understood_by_the_library(config) == dict.fromkeys(NAMES[:3], (4, False, "group"))


def test_several_schemes_name_their_layers() -> None:
    schemes = {NAMES[0]: W4, NAMES[1]: W8, NAMES[2]: W4}
    config = quantization_config(schemes, [NAMES[3], "lm_head"])
    groups = config["config_groups"]
    assert [group["targets"] for group in groups.values()] == [[NAMES[0], NAMES[2]], [NAMES[1]]]
    w4, w8 = (4, False, "group"), (8, True, "channel")
    assert understood_by_the_library(config) == {NAMES[0]: w4, NAMES[1]: w8, NAMES[2]: w4}


def test_schemes_that_differ_in_scale_type_only_share_a_group() -> None:
    schemes = {NAMES[0]: W4, NAMES[1]: QuantScheme(4, 32, symmetric=False, scale_dtype="float16")}
    assert len(quantization_config(schemes, [])["config_groups"]) == 1


@pytest.mark.parametrize("schemes", [dict.fromkeys(NAMES[:2], W4), {NAMES[0]: W4, NAMES[3]: W8}])
def test_reading_undoes_writing(schemes: dict[str, QuantScheme]) -> None:
    skipped = [name for name in NAMES if name not in schemes]
    assert parse_config(quantization_config(schemes, skipped), NAMES) == schemes


def test_name_wins_over_pattern_and_pattern_over_class() -> None:
    groups = {
        name: {"targets": targets, "weights": {"num_bits": bits, "group_size": -1, "strategy": "channel"}}
        for name, targets, bits in (("a", ["Linear"], 2), ("b", ["re:.*q_proj"], 4), ("c", [NAMES[0]], 8))
    }
    config = block(config_groups=groups, ignore=["re:.*1.up"])
    bits = {name: scheme.bits for name, scheme in parse_config(config, NAMES).items()}
    assert bits == {NAMES[0]: 8, NAMES[1]: 2, NAMES[2]: 4}
    assert understood_by_the_library({**config, "ignore": ["re:.*1.up", "lm_head"]}) == {
        name: (width, True, "channel") for name, width in bits.items()
    }


def test_fields_of_other_writers_that_change_nothing_are_accepted() -> None:
    weights = {
        "actorder": "weight",
        "block_structure": None,
        "dynamic": False,
        "observer": "mse",
        "observer_kwargs": {"a": 1},
        "scale_dtype": "torch.float16",
        "symmetric": True,
        "type": "int",
        "zp_dtype": None,
    }
    extra = {
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "global_compression_ratio": 1.5,
        "version": "0.12.2",
        "sparsity_config": {"format": "dense"},
        "transform_config": {},
        "ignore": None,
    }
    parsed = parse_config(block(weights, **extra), NAMES[:1])
    assert parsed == {NAMES[0]: QuantScheme(4, 32, symmetric=True, scale_dtype="float16")}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other format": (block(format="int-quantized"), "format; found 'int-quantized'"),
    "no format": (block(format=None), "format; found None"),
    "group of another format": (
        block(
            format="mixed-precision",
            config_groups={"g": {"targets": ["Linear"], "weights": {}, "format": "marlin-24"}},
        ),
        r"g\.format; found 'marlin-24'",
    ),
    "float weights in a format for integers": (
        block({"type": "float", "num_bits": 8, "group_size": None, "strategy": "channel"}),
        r"group_0\.format; found 'pack-quantized'",
    ),
    "float weights of 5 bits": (
        block({"type": "float", "num_bits": 5}),
        r"num_bits; found 5; expected 4 or 8",
    ),
    "float weights with zero points": (
        block({"type": "float", "num_bits": 8, "symmetric": False}),
        "symmetric",
    ),
    "16 bits": (block({"num_bits": 16}), "num_bits; found 16"),
    "dynamic weights": (block({"dynamic": True}), "dynamic; found True"),
    "one scale for all": (block({"strategy": "tensor", "group_size": None}), "strategy; found 'tensor'"),
    "strategy left out": (block({"strategy": None, "group_size": None}), "strategy; found 'tensor'"),
    "no group size": (block({"group_size": None}), "group_size; found None"),
    "group size of a channel": (block({"strategy": "channel"}), "group_size; found 32"),
    "group index": (block({"actorder": "group"}), "actorder; found 'group'"),
    "activation order of old": (block({"actorder": True}), "actorder; found True"),
    "8-bit scales": (block({"scale_dtype": "torch.uint8"}), "scale_dtype; found 'torch.uint8'"),
    "unknown key of weights": (block({"codebook": 1}), "weights: unknown codebook"),
    "unknown key": (block(rotation="hadamard"), "unknown rotation"),
    "no group and no cache": (block() | {"config_groups": {}}, "config_groups; found"),
    "sparse": (
        block(sparsity_config={"format": "sparse-bitmask"}),
        "sparsity_config; found 'sparse-bitmask'",
    ),
    "rotated": (block(transform_config={"config_groups": {}}), "transform_config; found"),
    "not compressed": (block(quantization_status="frozen"), "quantization_status; found 'frozen'"),
    "no groups": (block(config_groups={}), "config_groups; found {}"),
    "preset": (block(config_groups={"W4A16": ["Linear"]}), "group W4A16; found"),
    "no weights": (block(config_groups={"g": {"targets": ["Linear"], "weights": None}}), "g.weights; found"),
    "targets is text": (
        block(config_groups={"g": {"targets": "Linear", "weights": {"group_size": 8}}}),
        "targets",
    ),
    "broken pattern": (block(ignore=["re:("]), "pattern 're:\\('"),
    "ignore is text": (block(ignore="lm_head"), "ignore; found lm_head"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_refused_by_name(case: str) -> None:
    config, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        parse_config(config, NAMES)
