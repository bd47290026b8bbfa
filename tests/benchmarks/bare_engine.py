"""The engine without a server, in a process of its own: what HTTP is compared with.

    python -m tests.benchmarks.bare_engine REF STORE CONCURRENCY REQUESTS PROMPT_TOKENS OUTPUT_TOKENS...

Output lengths are taken in turn. Prints JSON: tokens per second, and used over
allocated token slots of the cache, the mean over all steps with work.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence

from gristmill.facade import engine_folder
from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.llm import load_engine
from gristmill.runtime.outputs import OutputDelta
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.settings import EngineSettings

BLOCK = 16


class Loop:
    """Keeps `concurrency` requests in the engine until all have been answered."""

    def __init__(self, engine: LLMEngine, prompt_tokens: int, outputs: Sequence[int]) -> None:
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        self._outputs = outputs
        self._random = random.Random(0)
        self._held: dict[str, int] = {}
        self._shares: list[float] = []
        self._sent = self.tokens = 0

    def run(self, concurrency: int, requests: int) -> float:
        """Seconds for all of them."""
        start = time.perf_counter()
        last = self._sent + requests
        while self._sent < last or self._held:
            while len(self._held) < concurrency and self._sent < last:
                self._send()
            for delta in self._engine.step():
                self._count(delta)
            self._sample()
        return time.perf_counter() - start

    @property
    def slot_use(self) -> float:
        """Mean share of allocated slots that hold a token."""
        return sum(self._shares) / max(1, len(self._shares))

    def _send(self) -> None:
        prompt = self._random.choices(range(100, 1000), k=self._prompt_tokens)
        tokens = self._outputs[self._sent % len(self._outputs)]
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        request_id = str(self._sent)
        self._engine.add_request(request_id, self._engine.prepare(prompt, params))
        self._held[request_id] = 0
        self._sent += 1

    def _count(self, delta: OutputDelta) -> None:
        if delta.error is not None:
            raise delta.error
        self.tokens += len(delta.token_ids)
        if delta.progress is not None:
            self._held[delta.request_id] = delta.progress.computed
        elif delta.token_ids:
            self._held[delta.request_id] += len(delta.token_ids)
        if delta.finish_reason is not None:
            del self._held[delta.request_id]

    def _sample(self) -> None:
        stats = self._engine.stats()
        if allocated := BLOCK * stats.num_held_blocks:
            self._shares.append(sum(self._held.values()) / allocated)


def main() -> None:
    """Measure once, after a short warm-up."""
    ref, store, *numbers = sys.argv[1:]
    concurrency, requests, prompt_tokens, *outputs = map(int, numbers)
    settings = EngineSettings(max_num_seqs=concurrency, prefix_caching=False, block_size=BLOCK)
    engine = load_engine(engine_folder(ref, store=store), settings)
    try:
        Loop(engine, prompt_tokens, [4]).run(concurrency, concurrency)
        loop = Loop(engine, prompt_tokens, outputs)
        seconds = loop.run(concurrency, requests)
        print(json.dumps({"output_tokens_per_s": loop.tokens / seconds, "slot_use": loop.slot_use}))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
