"""Token samples: what the model reads during calibration and validation, and where it came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gristmill.runtime.errors import IntegrityError
from gristmill.runtime.files import write_atomic

__all__ = [
    "LengthQuantiles",
    "SourceSummary",
    "TokenSamples",
    "length_octaves",
    "length_quantiles",
    "load_samples",
    "samples_digest",
    "save_samples",
]


@dataclass(frozen=True, slots=True)
class LengthQuantiles:
    """Tokens of a source's prompts as they stood in the file, before anything was cut."""

    minimum: int
    median: int
    p90: int
    maximum: int


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What one file gave: `share` is its part of all tokens, `truncated` its prompts cut at max_tokens.

    `octaves[i]` counts the prompts of 2^i to 2^(i+1) - 1 tokens before anything was cut.
    """

    name: str
    kind: str
    prompts: int
    tokens: int
    share: float
    truncated: int
    lengths: LengthQuantiles
    octaves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenSamples:
    """Token sequences with their content hash and the hashes of the records in them.

    `records` are those of `record_hashes`; `warnings` are sentences for the
    user about what was asked and could not be had in full.
    """

    sequences: tuple[tuple[int, ...], ...]
    digest: str
    prompts: int
    tokens: int
    records: frozenset[str]
    sources: tuple[SourceSummary, ...]
    warnings: tuple[str, ...] = ()


def length_quantiles(lengths: Sequence[int]) -> LengthQuantiles:
    """Quantiles of at least one length; each is a length that occurs."""
    levels = np.quantile(np.asarray(lengths), [0, 0.5, 0.9, 1], method="inverted_cdf")
    return LengthQuantiles(*(int(level) for level in levels))


def length_octaves(lengths: Sequence[int]) -> tuple[int, ...]:
    """How many lengths lie in 1, 2-3, 4-7, 8-15, ... up to the largest; empty ones count as 1."""
    return tuple(np.bincount([max(length, 1).bit_length() - 1 for length in lengths]).tolist())


def samples_digest(sequences: Sequence[Sequence[int]]) -> str:
    """`sha256:...` over the token ids, their order and where each sequence ends."""
    digest = hashlib.sha256()
    for sequence in sequences:
        digest.update(len(sequence).to_bytes(8, "little"))
        digest.update(np.asarray(sequence, dtype="<u4").tobytes())
    return f"sha256:{digest.hexdigest()}"


def save_samples(path: Path, samples: TokenSamples) -> None:
    """Write as safetensors: `tokens` and `lengths` (int32), the rest as metadata. Raises StorageError."""
    rest = asdict(samples)
    del rest["sequences"]
    rest["records"] = sorted(samples.records)
    flat = [token for sequence in samples.sequences for token in sequence]
    tensors: dict[str, NDArray[np.int32]] = {
        "tokens": np.asarray(flat, dtype=np.int32),
        "lengths": np.asarray([len(sequence) for sequence in samples.sequences], dtype=np.int32),
    }
    metadata = {"samples": json.dumps(rest, sort_keys=True, ensure_ascii=False)}
    write_atomic(path, save(tensors, metadata))


def load_samples(path: Path) -> TokenSamples:
    """Read what `save_samples` wrote. Raises IntegrityError if the file or its tokens have changed."""
    try:
        with safe_open(path, framework="numpy") as file:
            tokens, lengths = file.get_tensor("tokens"), file.get_tensor("lengths")
            rest = json.loads(file.metadata()["samples"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is not a file of token samples", found=str(error)) from error
    ends = np.cumsum(lengths)
    sequences = tuple(
        tuple(tokens[end - length : end].tolist()) for end, length in zip(ends, lengths, strict=True)
    )
    if (found := samples_digest(sequences)) != rest["digest"]:
        raise IntegrityError(f"{path} has changed", found=found, expected=rest["digest"])
    sources = [
        SourceSummary(
            **{
                **source,
                "lengths": LengthQuantiles(**source["lengths"]),
                "octaves": tuple(source["octaves"]),
            }
        )
        for source in rest["sources"]
    ]
    return TokenSamples(
        sequences=sequences,
        digest=rest["digest"],
        prompts=rest["prompts"],
        tokens=rest["tokens"],
        records=frozenset(rest["records"]),
        sources=tuple(sources),
        warnings=tuple(rest["warnings"]),
    )
