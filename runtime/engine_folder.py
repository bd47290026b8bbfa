"""A verified folder that an executor can load: the one thing that crosses from artifacts to the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.executors.base import KVDtype

__all__ = ["EngineFolder", "GoldenPrompt"]


@dataclass(frozen=True, slots=True, eq=False)
class GoldenPrompt:
    """A prompt whose logits were recorded when the artifact was built.

    `logits` float32 [P, vocab]: the rows of the last P prompt tokens.
    `continuation`: the tokens that greedy decoding adds, for a reader's eye and for a start-up check.
    """

    token_ids: tuple[int, ...]
    logits: NDArray[np.float32]
    continuation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """What serving needs, with every byte already checked against the manifest.

    `path` is the engine's own folder (for `reference` the checkpoint itself);
    `checkpoint` holds configuration, tokenizer, chat template and generation
    defaults. `name` is the model id shown to clients. `tolerances` maps a compute
    and a KV format to the largest KL in nats at which the engine, so used,
    reproduces `golden`, as measured when it was made. `kv_cache` is the format of
    keys and values that the artifact was built for, None where it names none.
    With `streamed`, the reference engine leaves weights on disk and reads each when
    it is needed, for a model larger than memory.
    """

    name: str
    target: str
    path: Path
    checkpoint: Path
    digest: str | None = None
    golden: tuple[GoldenPrompt, ...] = field(default=())
    tolerances: Mapping[tuple[str, str], float] = field(default_factory=dict)
    kv_cache: KVDtype | None = None
    streamed: bool = False
