"""`chat` and `generate`: use an artifact in this process, without a server."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.cli.engine_options import (
    ComputeOption,
    DebugNanOption,
    EngineChoice,
    EngineOption,
    KVCacheOption,
    MaxModelLenOption,
    MemoryOption,
    ProfileOption,
    RefArgument,
    ThreadsOption,
    VerifyOption,
)
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.output import say
from gristmill.runtime.errors import EXIT_INTERRUPTED, InputError
from gristmill.runtime.llm import LLM, load_engine
from gristmill.runtime.outputs import RequestOutput
from gristmill.runtime.sampling.params import SamplingParams

__all__ = ["chat", "generate"]

MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", metavar="N", help="Tokens of an answer at most.")
]
TemperatureOption = Annotated[float, typer.Option("--temperature", metavar="T", help="0 is greedy.")]
TopPOption = Annotated[float, typer.Option("--top-p", metavar="P", help="Nucleus sampling.")]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="Makes sampling repeatable.")]


def chat(
    ref: RefArgument,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="One question; without it, a conversation.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")] = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    engine: EngineOption = None,
    compute: ComputeOption = None,
    kv_cache_dtype: KVCacheOption = "auto",
    threads: ThreadsOption = None,
    verify: VerifyOption = "quick",
    debug_nan: DebugNanOption = False,
    profile: ProfileOption = False,
    max_model_len: MaxModelLenOption = None,
    memory: MemoryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask one question, or hold a conversation."""
    choice = EngineChoice(
        engine, compute, kv_cache_dtype, threads, verify, debug_nan, profile, max_model_len, memory
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    with _opened(choice, ref, store) as llm:
        for question in [prompt] if prompt is not None else _questions():
            messages.append({"role": "user", "content": question})
            answer = _answer(llm, messages, params, as_json=as_json)
            messages.append({"role": "assistant", "content": answer})


def generate(
    ref: RefArgument,
    prompts: Annotated[
        Path,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='JSONL with "prompt" or "messages" a line, or one text prompt a line.',
        ),
    ],
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    engine: EngineOption = None,
    compute: ComputeOption = None,
    kv_cache_dtype: KVCacheOption = "auto",
    threads: ThreadsOption = None,
    verify: VerifyOption = "quick",
    debug_nan: DebugNanOption = False,
    profile: ProfileOption = False,
    max_model_len: MaxModelLenOption = None,
    memory: MemoryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer every prompt of a file; one JSON line each on stdout, or one document with --json."""
    choice = EngineChoice(
        engine, compute, kv_cache_dtype, threads, verify, debug_nan, profile, max_model_len, memory
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    rows = _read_prompts(prompts)
    with _opened(choice, ref, store) as llm:
        outputs = llm.generate_each([_as_prompt(llm, row) for row in rows], params)
        num_written = _write_all(outputs, as_json=as_json)
    if num_written < len(rows):
        say(f"interrupted: {num_written} of {len(rows)} prompts are answered, in their order")
        raise typer.Exit(EXIT_INTERRUPTED)


@contextmanager
def _opened(choice: EngineChoice, ref: str, store: Path | None) -> Iterator[LLM]:
    """The artifact in this process; where its time went, if that was asked for, is told at the end."""
    llm = LLM(load_engine(choice.folder(ref, store), choice.settings()))
    try:
        yield llm
    finally:
        llm.close()
        for line in llm.profile_lines():
            say(line)


def _as_prompt(llm: LLM, row: str | list[Any]) -> str | list[int]:
    """A chat becomes tokens here, because its template has written the special tokens already."""
    if isinstance(row, str):
        return row
    text = llm.tokenizer.apply_chat_template(row, add_generation_prompt=True)
    return llm.tokenizer.encode(text, add_special_tokens=False)


def _answer(llm: LLM, messages: list[dict[str, Any]], params: SamplingParams, *, as_json: bool) -> str:
    """One answer, shown as it grows."""
    if as_json:
        (output,) = llm.chat(messages, params)
        print(json.dumps(_row(output), ensure_ascii=False), flush=True)
        return output.outputs[0].text
    pieces = []
    for delta in llm.stream_chat(messages, params):
        print(delta.text, end="", flush=True)
        pieces.append(delta.text)
    print(flush=True)
    return "".join(pieces)


def _write_all(outputs: Iterator[RequestOutput], *, as_json: bool) -> int:
    """Print answers, each as it comes or all in one document, until the last or an interrupt; how many."""
    answers: list[dict[str, Any]] = []
    try:
        for output in outputs:
            with _interrupts_after():
                answers.append(_row(output))
                if not as_json:
                    print(json.dumps(answers[-1], ensure_ascii=False), flush=True)
    except KeyboardInterrupt:
        return len(answers)
    finally:  # what is answered is not lost with what can't be
        if as_json:
            print(json.dumps(answers, ensure_ascii=False, indent=2))
    return len(answers)


@contextmanager
def _interrupts_after() -> Iterator[None]:
    """Put off an interrupt to the end, so that what is counted is written and what is written is whole."""
    interrupted = False

    def remember(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    previous = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupted:
        raise KeyboardInterrupt


def _questions() -> Iterator[str]:
    """What the user types, until the end of input."""
    interactive = sys.stdin.isatty()
    if interactive:
        say("end with Ctrl-D")
    while True:
        if interactive:
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _read_prompts(path: Path) -> list[str | list[Any]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold the other line ends
    except FileNotFoundError as error:
        raise InputError(f"--prompts {path}", found="no such file") from error
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"--prompts {path}", found=str(error), expected="a file of UTF-8 text") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InputError(f"--prompts {path}", found="no prompt", expected="one a line")
    if path.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_parse_row(f"{path}:{number}", line) for number, line in numbered]


def _parse_row(place: str, line: str) -> str | list[Any]:
    expected = 'an object with "prompt" (text) or "messages" (a list of objects)'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(place, found=f"no JSON: {error}", expected=expected) from error
    if isinstance(row, dict) and isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    messages = row.get("messages") if isinstance(row, dict) else None
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return messages
    raise InputError(place, found=line[:80], expected=expected)


def _row(output: RequestOutput) -> dict[str, Any]:
    (answer,) = output.outputs
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(answer.token_ids),
    }
