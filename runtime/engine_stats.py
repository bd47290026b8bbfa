"""Counts of an engine, for metrics and whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineStats"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state at this moment.

    `num_waiting_tokens` are the prompt tokens of waiting requests. A block is
    held, free, or reserved for a prompt that is being read. One that is not held
    may still have a cached prefix: `num_cached_blocks` do. The last four count from the start:
    `prefix_queries` prompt tokens were looked up in the prefix cache and `prefix_hits` found.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_preemptions: int
    num_waiting_tokens: int = 0
    num_held_blocks: int = 0
    num_cached_blocks: int = 0
    num_recomputed: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the cache's blocks that requests hold."""
        return self.num_held_blocks / self.num_blocks
