from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]: ...
def effective_threads() -> int: ...
def measure_bandwidth(threads: int, bytes: int) -> float: ...
def measure_compute(isa: str, threads: int) -> dict[str, float]: ...

class Engine:
    def __init__(self, file: Any, model: dict[str, Any], options: dict[str, Any]) -> None: ...
    def execute(
        self,
        token_ids: NDArray[np.int32],
        starts: NDArray[np.int32],
        lengths: NDArray[np.int32],
        block_ids: NDArray[np.int32],
        table_starts: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
    ) -> NDArray[np.float32]: ...
    def sample_rows(
        self, logits: NDArray[np.float32], rows: Sequence[int], states: Sequence[SamplerState]
    ) -> list[Choice]: ...
    def copy_block(self, source: int, target: int) -> None: ...
    @property
    def seconds(self) -> dict[str, float]: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def kv_scales(self) -> list[tuple[list[float], list[float]]]: ...

def linear_forms(isa: str) -> list[str]: ...
def linear_panel(
    isa: str,
    kind: str,
    packed: NDArray[np.uint8],
    rows: int,
    columns: int,
    group: int,
    zero_points: bool,
    form: str,
    values: NDArray[np.uint8],
    scales: NDArray[np.float32],
    sums: NDArray[np.int32],
    tokens: int,
    panel: int,
    last: int,
    panels_a_call: int = 1,
    tiles_a_call: int = 1,
) -> NDArray[np.float32]: ...
def gated_panels(
    isa: str,
    kind: str,
    packed: NDArray[np.uint8],
    rows: int,
    columns: int,
    group: int,
    values: NDArray[np.uint8],
    tokens: int,
    panel: int,
    last: int,
    activation: int,
    channels: int,
    bias: NDArray[np.float32] | None = None,
    panels_a_call: int = 1,
    tiles_a_call: int = 1,
) -> NDArray[np.uint8]: ...

class SamplerState:
    def __init__(
        self,
        *,
        seed: int,
        completion: int,
        vocab_size: int,
        prompt_token_ids: Sequence[int],
        end_token_ids: Sequence[int],
        logit_bias: Sequence[tuple[int, float]],
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        min_tokens: int,
        logprobs: int,
        bad_words: Sequence[Sequence[int]] = (),
        allowed_token_ids: Sequence[int] | None = None,
    ) -> None: ...
    def append(self, token_id: int) -> None: ...
    def uniform(self) -> float: ...

class ChoiceFault(Enum):
    none = 0
    not_finite = 1
    no_token = 2

class Logprobs:
    @property
    def finite(self) -> bool: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> tuple[tuple[int, float], ...]: ...

class Choice:
    @property
    def fault(self) -> ChoiceFault: ...
    @property
    def token_id(self) -> int: ...
    @property
    def largest(self) -> float: ...
    @property
    def logprobs(self) -> Logprobs | None: ...

def sample_rows(
    logits: NDArray[np.float32], rows: Sequence[int], states: Sequence[SamplerState]
) -> list[Choice]: ...
def logprobs_of_rows(logits: NDArray[np.float32], token_ids: Sequence[int], count: int) -> list[Logprobs]: ...
