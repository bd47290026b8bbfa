from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]: ...

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
