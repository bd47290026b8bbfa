"""A model that is nothing but its cache, a byte tokenizer, and engines made of them.

The model's next token is a function of the tokens that it reads back through
the block table. A block written twice, too early or at the wrong place changes
the answer, so paging faults show in the output.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.executors.base import ExecutorInfo, KVCacheConfig, SequenceStep
from gristmill.runtime.model_plan import ModelPlan, NormPlan
from gristmill.runtime.server.listen import bind, url_of
from gristmill.runtime.server.models import LoadedModel
from gristmill.runtime.server.service import Load, serve_models
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.settings import EngineSettings
from gristmill.runtime.tokenizer import Tokenizer

VOCAB_SIZE = 260
EOS, START = 256, 257
MAX_POSITIONS = 4096

Rule = Callable[[Sequence[int]], NDArray[np.float32]]


def hash_rule(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits that depend on every token before."""
    seed = zlib.crc32(np.array(tokens, np.int64).tobytes())
    return np.random.default_rng(seed).normal(scale=3.0, size=VOCAB_SIZE).astype(np.float32)


def parrot_rule(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Repeats the prompt's first line, then ends."""
    line = list(tokens).index(ord("\n")) if ord("\n") in tokens else len(tokens)
    spoken = len(tokens) - 1 - line
    logits = np.zeros(VOCAB_SIZE, np.float32)
    logits[tokens[spoken] if 0 <= spoken < line else EOS] = 20.0
    return logits


RULES: dict[str, Rule] = {"hash": hash_rule, "parrot": parrot_rule}


class CacheModel:
    """An executor whose only state is the token ids in its paged cache.

    A step takes `delay` seconds, waits for `gate` if there is one, and raises
    if it holds the token `fail_on`; `on_step` is shown its batch.
    """

    def __init__(
        self,
        rule: Rule,
        cache: KVCacheConfig,
        *,
        delay: float = 0.0,
        gate: threading.Event | None = None,
        fail_on: int | None = None,
        on_step: Callable[[Sequence[SequenceStep]], None] | None = None,
    ) -> None:
        self.cache = cache
        self.info = ExecutorInfo("cache-model", "float32", cache.dtype)
        self.plan = ModelPlan(
            architecture="CacheModel",
            vocab_size=VOCAB_SIZE,
            hidden_size=1,
            max_positions=MAX_POSITIONS,
            dtype="float32",
            embedding="embed",
            layers=(),
            final_norm=NormPlan("norm", 1, 1e-6),
            head=None,
        )
        self.closed = False
        self._rule = rule
        self._delay = delay
        self._gate = gate
        self._fail_on = fail_on
        self._on_step = on_step
        self._tokens = np.full((cache.num_blocks, cache.block_size), -1, np.int64)

    def execute(self, batch: Sequence[SequenceStep]) -> NDArray[np.float32]:
        time.sleep(self._delay)
        if self._gate is not None:
            assert self._gate.wait(30)
        if self._on_step is not None:
            self._on_step(batch)
        if any(self._fail_on in step.token_ids for step in batch):
            raise RuntimeError("the device is on fire")
        written = [block for step in batch for block in self._written(step)]
        assert len(set(written)) == len(written), "two sequences write to one block"
        for step in batch:
            self._write(step)
        rows = [row for step in batch for row in self._logits(step)]
        return np.stack(rows) if rows else np.empty((0, VOCAB_SIZE), np.float32)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self._tokens[target] = self._tokens[source]

    def close(self) -> None:
        self.closed = True

    def _written(self, step: SequenceStep) -> Sequence[int]:
        size = self.cache.block_size
        return step.block_table[step.start // size : -(-(step.start + len(step.token_ids)) // size)]

    def _write(self, step: SequenceStep) -> None:
        for position, token_id in enumerate(step.token_ids, step.start):
            block = step.block_table[position // self.cache.block_size]
            self._tokens[block, position % self.cache.block_size] = token_id

    def _logits(self, step: SequenceStep) -> list[NDArray[np.float32]]:
        end = step.start + len(step.token_ids)
        read = self._tokens[list(step.block_table)].reshape(-1)[:end]
        assert (read != -1).all(), "a position was read before it was written"
        first = end - step.num_logit_rows
        tokens = read.tolist() if first < end else []
        return [self._rule(tokens[: position + 1]) for position in range(first, end)]


class WorkClock:
    """A clock that only steps move, each by its work; `steps` are their seconds.

    5 milliseconds a step, 0.4 a token and 1 for 1,000 pairs of tokens that attention looks at.
    """

    def __init__(self) -> None:
        self.steps: list[float] = []

    def __call__(self) -> float:
        return sum(self.steps)

    def work(self, batch: Sequence[SequenceStep]) -> None:
        sizes = [(step.start, len(step.token_ids)) for step in batch]
        pairs = sum(length * (start + length / 2) for start, length in sizes)
        self.steps.append(5e-3 + 4e-4 * sum(length for _, length in sizes) + 1e-6 * pairs)


def byte_alphabet() -> list[str]:
    """GPT-2's stand-in character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_tokenizer_files(*, adds_start: bool = False) -> dict[str, bytes]:
    """A tokenizer whose token ids are bytes; 256 ends a text, 257 starts one if `adds_start`."""
    specials = {"<|end|>": EOS, "<|start|>": START}
    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())} | specials
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [
        {"id": token_id, "content": content, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for content, token_id in specials.items()
    ]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings = {
        "eos_token": "<|end|>",
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    if adds_start:
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|start|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [START], "tokens": ["<|start|>"]}},
        }
        settings["bos_token"] = "<|start|>"
        settings["chat_template"] = "{{ bos_token }}" + settings["chat_template"]
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}
    return {name: json.dumps(value).encode() for name, value in files.items()}


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Token ids are bytes; a chat is its messages' contents, one a line."""
    return Tokenizer.from_files(byte_tokenizer_files(), {})


@pytest.fixture(scope="session")
def start_tokenizer() -> Tokenizer:
    """As `byte_tokenizer`; it and the chat template both put a start token first."""
    return Tokenizer.from_files(byte_tokenizer_files(adds_start=True), {})


@pytest.fixture(scope="session")
def make_engine(byte_tokenizer: Tokenizer) -> Callable[..., LLMEngine]:
    """Engines over a cache model; further arguments are EngineSettings."""

    def make(
        rule: str = "hash",
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        delay: float = 0.0,
        gate: threading.Event | None = None,
        fail_on: int | None = None,
        work_clock: WorkClock | None = None,
        on_step: Callable[[Sequence[SequenceStep]], None] | None = None,
        tokenizer: Tokenizer = byte_tokenizer,
        **settings: Any,
    ) -> LLMEngine:
        cache = KVCacheConfig(num_blocks, block_size, "float32")
        shown = on_step if work_clock is None else work_clock.work
        model = CacheModel(RULES[rule], cache, delay=delay, gate=gate, fail_on=fail_on, on_step=shown)
        clock = time.perf_counter if work_clock is None else work_clock
        return LLMEngine(model, tokenizer, EngineSettings(compute="float32", **settings), clock=clock)

    return make


@pytest.fixture
def work_clock() -> WorkClock:
    """Time that only work takes, for one engine."""
    return WorkClock()


@pytest.fixture(scope="session")
def greedy_tokens() -> Callable[..., list[int]]:
    """The slow twin of greedy serving by a hash model: no cache, no batch, one token after the other."""

    def generate(prompt: Sequence[int], max_tokens: int, rule: str = "hash") -> list[int]:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + max_tokens:
            tokens.append(int(RULES[rule](tokens).argmax()))
            if tokens[-1] == EOS:
                break
        return tokens[len(prompt) :]

    return generate


@pytest.fixture
def byte_model_folder(tmp_path: Path) -> Path:
    """A folder with the byte tokenizer's files."""
    for name, data in byte_tokenizer_files().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


class ServerThread:
    """A real server on a thread of its own.

    `url` is its base address, `stop` begins the drain, `error` is what ended it, if anything did.
    """

    def __init__(self, load: Load, settings: ServerSettings, options: dict[str, Any]) -> None:
        self._listener = bind("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self.error: BaseException | None = None
        self._load = load
        self._settings = settings
        self._options = options
        self._started = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(10)

    def wait_until_ready(self) -> None:
        assert self._ready.wait(10)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not end"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._started.set()
        await serve_models(
            self._load,
            self._listener,
            self._stop,
            self._settings,
            on_ready=self._ready.set,
            **self._options,
        )


@contextmanager
def running_server(
    grace_seconds: float = 10.0,
    settings: ServerSettings | None = None,
    options: dict[str, Any] | None = None,
    load: Load | None = None,
    **engines: LLMEngine,
) -> Iterator[ServerThread]:
    """A ready server for engines by model id, or one that is not waited for with a `load` of its own."""
    loaded = [LoadedModel(name, engine) for name, engine in engines.items()]
    settings = settings or ServerSettings(grace_seconds=grace_seconds)
    server = ServerThread(load or (lambda tell: loaded), settings, options or {})
    try:
        if load is None:
            server.wait_until_ready()
        yield server
    finally:
        server.stop()
        server.join()


@pytest.fixture(scope="session")
def run_server_thread() -> Callable[..., AbstractContextManager[ServerThread]]:
    """A context with a server for engines by model id; it is stopped, and must end, afterwards."""
    return running_server


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerThread]]:
    """Servers for one test."""
    with ExitStack() as stack:
        yield lambda *args, **engines: stack.enter_context(running_server(*args, **engines))
