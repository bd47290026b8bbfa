"""What a native engine's files hold, as frozen values: the words of `plan.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from gristmill.runtime.kernels.layout import WeightKind
from gristmill.runtime.kv_scales import KVScales
from gristmill.runtime.model_plan import ModelPlan

__all__ = [
    "EngineFile",
    "StoredBlock",
    "StoredLayer",
    "StoredMixture",
    "StoredMixtureLayer",
    "StoredMlp",
    "StoredTensor",
    "StoredWeight",
]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A dense tensor, row by row, at `offset` of the weights file."""

    dtype: Literal["float32", "bfloat16"]
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One linear, or several over one input, in kernel layout at `offset` of the weights file.

    `rows` and `columns` are padded; `in_features` and `outputs` (one entry a
    part, in order) are the model's own. `group` is 0 for floats. `bias` has an
    entry for each padded row, in the order of the tiles' rows.
    """

    kind: WeightKind
    rows: int
    columns: int
    group: int
    zero_points: bool
    offset: int
    bytes: int
    in_features: int
    outputs: tuple[int, ...]
    bias: StoredTensor | None


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """The tensors of one decoder block. A tile of `gate_up` holds 16 gate rows, then the matching up rows."""

    input_norm: StoredTensor
    mlp_norm: StoredTensor
    q_norm: StoredTensor | None
    k_norm: StoredTensor | None
    qkv: StoredWeight
    o: StoredWeight
    gate_up: StoredWeight
    down: StoredWeight

    @property
    def weights(self) -> dict[str, StoredWeight]:
        """All weights by their place in the block."""
        return {"qkv": self.qkv, "o": self.o, "gate_up": self.gate_up, "down": self.down}


@dataclass(frozen=True, slots=True)
class StoredMlp:
    """An expert; its tiles are those of a dense block's MLP."""

    gate_up: StoredWeight
    down: StoredWeight


@dataclass(frozen=True, slots=True)
class StoredMixture:
    """Experts and their router: a float32 weight, whose second part is the shared expert's gate."""

    router: StoredWeight
    experts: tuple[StoredMlp, ...]
    shared: StoredMlp | None


@dataclass(frozen=True, slots=True)
class StoredMixtureLayer:
    """The tensors of a decoder block with experts."""

    input_norm: StoredTensor
    mlp_norm: StoredTensor
    q_norm: StoredTensor | None
    k_norm: StoredTensor | None
    qkv: StoredWeight
    o: StoredWeight
    mixture: StoredMixture

    @property
    def weights(self) -> dict[str, StoredWeight]:
        """All weights by their place in the block."""
        weights = {"qkv": self.qkv, "o": self.o, "mixture.router": self.mixture.router}
        mlps = {f"mixture.experts[{index}]": mlp for index, mlp in enumerate(self.mixture.experts)}
        if self.mixture.shared is not None:
            mlps["mixture.shared"] = self.mixture.shared
        for name, mlp in mlps.items():
            weights |= {f"{name}.gate_up": mlp.gate_up, f"{name}.down": mlp.down}
        return weights


StoredBlock: TypeAlias = StoredLayer | StoredMixtureLayer


@dataclass(frozen=True, slots=True)
class EngineFile:
    """An engine whose files were checked. `bytes` and `sha256` are those of the weights file `path`.

    `kv_scales` are those of an FP8 cache; empty where none were calibrated.
    """

    path: Path
    bytes: int
    sha256: str
    plan: ModelPlan
    layers: tuple[StoredBlock, ...]
    embedding: StoredTensor
    final_norm: StoredTensor
    head: StoredWeight
    kv_scales: KVScales = ()
