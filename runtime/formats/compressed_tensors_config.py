"""The `quantization_config` of compressed-tensors, written and read for weight-only `pack-quantized`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.formats.base import refuse_keys
from gristmill.runtime.scheme import QuantScheme, ScaleDtype

__all__ = ["parse_config", "quantization_config"]

_FORMAT = "pack-quantized"
_WHERE = "quantization_config of compressed-tensors"
_BLOCK_KEYS = (
    "config_groups",
    "format",
    "global_compression_ratio",
    "ignore",
    "kv_cache_scheme",
    "quant_method",
    "quantization_status",
    "sparsity_config",
    "transform_config",
    "version",
)
_GROUP_KEYS = ("format", "input_activations", "output_activations", "targets", "weights")
_WEIGHT_KEYS = (
    "actorder",
    "block_structure",
    "dynamic",
    "group_size",
    "num_bits",
    "observer",
    "observer_kwargs",
    "scale_dtype",
    "strategy",
    "symmetric",
    "type",
    "zp_dtype",
)
_SCALE_DTYPES: Mapping[str | None, ScaleDtype] = {
    None: "bfloat16",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float32": "float32",
}
_LINEAR_CLASS = "Linear"


def quantization_config(schemes: Mapping[str, QuantScheme], skipped: Sequence[str]) -> dict[str, Any]:
    """The block of `config.json`.

    One scheme is a group with target `Linear`. Several are groups that list
    their layers: engines that fuse q, k and v match a class before the parts of
    a fused layer, so a class target beside named ones would be misread.
    """
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for name, scheme in schemes.items():
        weights = _weights_block(scheme)
        targets = next((targets for block, targets in groups if block == weights), None)
        if targets is None:
            groups.append((weights, [name]))
        else:
            targets.append(name)
    if len(groups) == 1:
        groups = [(groups[0][0], [_LINEAR_CLASS])]
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{index}": {
                "targets": targets,
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
            for index, (weights, targets) in enumerate(groups)
        },
        "ignore": list(skipped),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _weights_block(scheme: QuantScheme) -> dict[str, Any]:
    channel = scheme.group_size == -1
    return {
        "num_bits": scheme.bits,
        "type": scheme.type,
        "symmetric": scheme.symmetric,
        "strategy": "channel" if channel else "group",
        "group_size": None if channel else scheme.group_size,
        "dynamic": False,
        "actorder": None,
    }


def parse_config(config: Mapping[str, Any], linear_names: Sequence[str]) -> dict[str, QuantScheme]:
    """The scheme of each linear that the block quantizes, in the order of `linear_names`.

    The scale dtype is the block's `scale_dtype`, else bfloat16; only the stored
    scales know better. Raises UnsupportedError naming whatever is not read.
    """
    refuse_keys(_WHERE, config, _BLOCK_KEYS)
    for key in ("kv_cache_scheme", "transform_config"):
        _expect(key, config.get(key) or None, None)
    sparsity = config.get("sparsity_config") or {}
    _expect(
        "sparsity_config",
        sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity,
        None,
        "dense",
    )
    _expect("quantization_status", config.get("quantization_status", "compressed"), "compressed")
    _expect("format", config.get("format"), _FORMAT, "mixed-precision")
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedError(f"{_WHERE}: config_groups", found=groups, expected="at least one group")
    schemes: dict[str, QuantScheme] = {}
    for group_name, group in groups.items():
        targets, scheme = _parse_group(group_name, group, config["format"])
        schemes.update(dict.fromkeys(targets, scheme))
    ignored = _names("ignore", config.get("ignore") or [])
    matched = {name: _match(name, schemes) for name in linear_names if not _is_ignored(name, ignored)}
    return {name: scheme for name, scheme in matched.items() if scheme is not None}


def _parse_group(name: str, group: Any, block_format: str) -> tuple[list[str], QuantScheme]:
    if not isinstance(group, Mapping):
        raise UnsupportedError(
            f"{_WHERE}: group {name}", found=group, expected="targets and weights spelled out"
        )
    refuse_keys(f"{_WHERE}, group {name}", group, _GROUP_KEYS)
    _expect(f"{name}.format", group.get("format") or block_format, _FORMAT)
    for key in ("input_activations", "output_activations"):
        if group.get(key) is not None:
            raise UnsupportedError(
                f"{_WHERE}: quantized activations ({name}.{key})", found=group[key], expected="weights only"
            )
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise UnsupportedError(f"{_WHERE}: {name}.weights", found=repr(weights), expected="a scheme")
    return _names(f"{name}.targets", group.get("targets")), _parse_weights(f"{name}.weights", weights)


def _parse_weights(where: str, weights: Mapping[str, Any]) -> QuantScheme:
    refuse_keys(f"{_WHERE}, {where}", weights, _WEIGHT_KEYS)
    _expect(f"{where}.type", weights.get("type", "int"), "int")
    _expect(f"{where}.num_bits", weights.get("num_bits", 8), *range(2, 9))
    _expect(f"{where}.dynamic", weights.get("dynamic", False), False)
    _expect(f"{where}.symmetric", weights.get("symmetric", True), True, False)
    _expect(f"{where}.block_structure", weights.get("block_structure"), None)
    # Activation order by static groups leaves no trace in the file; "group" would need a group index.
    _expect(f"{where}.actorder", weights.get("actorder"), None, False, "weight", "static")
    _expect(f"{where}.scale_dtype", weights.get("scale_dtype"), *_SCALE_DTYPES)
    return QuantScheme(
        bits=weights.get("num_bits", 8),
        group_size=_group_size(where, weights),
        symmetric=weights.get("symmetric", True),
        scale_dtype=_SCALE_DTYPES[weights.get("scale_dtype")],
    )


def _group_size(where: str, weights: Mapping[str, Any]) -> int:
    size = weights.get("group_size")
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.get("strategy") or implied
    _expect(f"{where}.strategy", strategy, "group", "channel")
    if strategy == "channel":
        _expect(f"{where}.group_size", size, None, -1)
        return -1
    if type(size) is not int or size < 1:
        raise UnsupportedError(
            f"{_WHERE}: {where}.group_size", found=repr(size), expected="a positive number"
        )
    return size


def _expect(where: str, found: Any, *allowed: Any) -> None:
    # bool is an int in Python, so that 1 == True: compare types too.
    if not any(found == value and type(found) is type(value) for value in allowed):
        raise UnsupportedError(
            f"{_WHERE}: {where}",
            found=repr(found),
            expected=" or ".join(map(repr, allowed)) + " in this version",
        )


def _names(where: str, found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UnsupportedError(f"{_WHERE}: {where}", found=found, expected="a list of names")
    return found


def _match(name: str, schemes: Mapping[str, QuantScheme]) -> QuantScheme | None:
    """The scheme of a linear: an exact name wins over a pattern, and that over the class."""
    if name in schemes:
        return schemes[name]
    patterns = sorted(target for target in schemes if target.startswith("re:"))
    matching = next((target for target in patterns if _matches_pattern(name, target)), None)
    return schemes[matching] if matching is not None else schemes.get(_LINEAR_CLASS)


def _is_ignored(name: str, ignored: Sequence[str]) -> bool:
    return any(
        _matches_pattern(name, entry) if entry.startswith("re:") else entry in (name, _LINEAR_CLASS)
        for entry in ignored
    )


def _matches_pattern(name: str, target: str) -> bool:
    try:
        return re.match(target.removeprefix("re:"), name) is not None
    except re.error as error:
        raise UnsupportedError(f"{_WHERE}: pattern {target!r}", found=error) from error
