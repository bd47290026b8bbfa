"""What is measured, and what an engine must offer to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["BEST_PEER", "ROWS", "SHAPE_ROWS", "Limit", "Storage", "System", "Workload"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The least ratio to one system, or to the best of all peers."""

    ratio: float
    against: str


@dataclass(frozen=True, slots=True)
class Workload:
    """`batch` sequences of `context` prompt tokens: their prompts, or `steps` tokens of each after them."""

    kind: Literal["prefill", "decode"]
    batch: int
    context: int
    steps: int = 0
    limit: Limit | None = None

    @property
    def name(self) -> str:
        """How the row is called: `prefill 512`, `decode 8 at 256`."""
        if self.kind == "prefill":
            return f"prefill {self.context}"
        return f"decode {self.batch} at {self.context}"

    @property
    def tokens(self) -> int:
        """Tokens that are timed."""
        return self.batch * (self.steps or self.context)


@dataclass(frozen=True, slots=True)
class Storage:
    """What an engine reads: the weights of one step, and what a token's keys and values take, in bytes."""

    weights: int
    kv_token: float
    note: str


class System(Protocol):
    """One engine with the model loaded or at hand."""

    @property
    def name(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    def measure(self, workload: Workload) -> float:
        """Tokens per second, once."""

    def close(self) -> None: ...


BEST_PEER = "best peer"
"""A limit against whichever peer is fastest in the row."""

_LLAMA = "llama.cpp Q4_0"

ROWS = (
    Workload("prefill", 1, 512, limit=Limit(1.5, BEST_PEER)),
    Workload("decode", 1, 256, 64, Limit(2.5, _LLAMA)),
    Workload("decode", 8, 256, 32, Limit(4.0, BEST_PEER)),
    Workload("decode", 32, 256, 32, Limit(3.0, BEST_PEER)),
    Workload("decode", 64, 256, 32),
    Workload("decode", 1, 2048, 32),
    Workload("decode", 8, 2048, 32, Limit(2.5, _LLAMA)),
    Workload("decode", 32, 2048, 16),
    Workload("decode", 64, 2048, 16),
)

SHAPE_ROWS = (
    Workload("decode", 1, 256, 16),
    Workload("decode", 8, 256, 16),
)
"""For random weights of a larger shape."""
