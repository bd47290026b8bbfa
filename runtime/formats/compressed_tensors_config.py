"""The `quantization_config` of compressed-tensors, written and read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.formats.base import refuse_keys
from gristmill.runtime.formats.compressed_tensors_args import (
    WHERE,
    activations_block,
    expect,
    format_name,
    parse_scheme,
    weights_block,
)
from gristmill.runtime.scheme import QuantScheme

__all__ = ["parse_config", "quantization_config"]

_MIXED = "mixed-precision"
_DENSE = "dense"
_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
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
_LINEAR_CLASS = "Linear"


def quantization_config(schemes: Mapping[str, QuantScheme], skipped: Sequence[str]) -> dict[str, Any]:
    """The block of `config.json`.

    One scheme is a group with target `Linear`. Several are groups that list
    their layers: engines that fuse q, k and v match a class before the parts of
    a fused layer, so a class target beside named ones would be misread. Without
    any scheme there is no group: the weights are plain, the cache may not be.
    """
    groups: list[tuple[QuantScheme, dict[str, Any], list[str]]] = []
    for name, scheme in schemes.items():
        blocks = _blocks(scheme)
        targets = next((targets for _, known, targets in groups if known == blocks), None)
        if targets is None:
            groups.append((scheme, blocks, [name]))
        else:
            targets.append(name)
    formats = [format_name(scheme) for scheme, _, _ in groups]
    mixed = len(set(formats)) > 1  # readers of old know no format of a group
    return {
        "quant_method": "compressed-tensors",
        "format": _MIXED if mixed else formats[0] if formats else _DENSE,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{index}": {
                "targets": targets if len(groups) > 1 else [_LINEAR_CLASS],
                **blocks,
                **({"format": formats[index]} if mixed else {}),
            }
            for index, (_, blocks, targets) in enumerate(groups)
        },
        "ignore": list(skipped),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _blocks(scheme: QuantScheme) -> dict[str, Any]:
    return {
        "weights": weights_block(scheme),
        "input_activations": activations_block(scheme),
        "output_activations": None,
    }


def parse_config(config: Mapping[str, Any], linear_names: Sequence[str]) -> dict[str, QuantScheme]:
    """The scheme of each linear that the block quantizes, in the order of `linear_names`.

    The scale dtype is the block's `scale_dtype`, else bfloat16; only the stored
    scales know better. Raises UnsupportedError naming whatever is not read.
    """
    refuse_keys(WHERE, config, _BLOCK_KEYS)
    expect("transform_config", config.get("transform_config") or None, None)
    sparsity = config.get("sparsity_config") or {}
    expect(
        "sparsity_config",
        sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity,
        None,
        "dense",
    )
    expect("quantization_status", config.get("quantization_status", "compressed"), "compressed")
    groups = config.get("config_groups")
    if groups == {} and config.get("kv_cache_scheme"):
        return {}
    expect("format", config.get("format"), *_FORMATS, _MIXED)
    if not isinstance(groups, Mapping) or not groups:
        raise UnsupportedError(f"{WHERE}: config_groups", found=groups, expected="at least one group")
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
            f"{WHERE}: group {name}", found=group, expected="targets and weights spelled out"
        )
    refuse_keys(f"{WHERE}, group {name}", group, _GROUP_KEYS)
    stored = group.get("format") or block_format
    expect(f"{name}.format", stored, *_FORMATS)
    expect(f"{name}.output_activations", group.get("output_activations"), None)
    scheme = parse_scheme(name, group.get("weights"), group.get("input_activations"))
    is_float8 = scheme.type == "float" and scheme.bits == 8 and scheme.activation is None
    expect(f"{name}.format", stored, format_name(scheme), *(("float-quantized",) if is_float8 else ()))
    return _names(f"{name}.targets", group.get("targets")), scheme


def _names(where: str, found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UnsupportedError(f"{WHERE}: {where}", found=found, expected="a list of names")
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
        raise UnsupportedError(f"{WHERE}: pattern {target!r}", found=error) from error
