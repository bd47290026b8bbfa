"""`chat` and `generate` as processes: an input that ends or is none, and interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.outputs import CompletionOutput, RequestOutput
from tests.command_line import CommandLine

NUM_PROMPTS = 100


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Many short prompts."""
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"Tell me about {number}\n" for number in range(NUM_PROMPTS)))
    return path


def test_an_interrupt_keeps_the_answers_until_then(built: CommandLine, prompts: Path) -> None:
    process = built.start("generate", "tiny", "--prompts", prompts, "--max-tokens", 400)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, log = process.stdout.read(), process.stderr.read()  # `communicate` passes by what is buffered
    process.communicate(timeout=60)
    answers = [json.loads(line) for line in (first + rest).split("\n") if line]
    assert process.returncode == 130, log
    assert 1 <= len(answers) < NUM_PROMPTS
    assert log == f"interrupted: {len(answers)} of {NUM_PROMPTS} prompts are answered, in their order\n"


def test_other_line_ends_do_not_split_a_prompt(built: CommandLine, prompts: Path) -> None:
    path = prompts.with_suffix(".jsonl")
    path.write_text('{"prompt": "one\u2028two"}\n', encoding="utf-8")
    done = built.run("generate", "tiny", "--prompts", path, "--max-tokens", 1)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completion_tokens"] == 1


class InterruptedLLM:
    """Answers two prompts; then the user has had enough."""

    def __init__(self, *arguments: object) -> None:
        self.closed = False

    def generate_each(self, prompts: object, params: object) -> Iterator[RequestOutput]:
        for text in ("one", "two"):
            answer = CompletionOutput(0, text, (1,), None, "stop")
            yield RequestOutput(text, "prompt", (1, 2), (answer,))
        raise KeyboardInterrupt

    def close(self) -> None:
        self.closed = True

    def profile_lines(self) -> list[str]:
        assert self.closed
        return []


def test_a_document_holds_the_answers_until_an_interrupt(
    gristmill, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = EngineFolder("m", "reference", prompts.parent, prompts.parent)
    monkeypatch.setattr("gristmill.facade.engine_folder", lambda ref, **rest: folder)
    monkeypatch.setattr("gristmill.cli.generate.load_engine", lambda folder, settings: None)
    monkeypatch.setattr("gristmill.cli.generate.LLM", InterruptedLLM)
    outcome = gristmill("generate", "m", "--prompts", prompts, "--json")
    assert outcome.code == 130
    assert [answer["text"] for answer in json.loads(outcome.out)] == ["one", "two"]
    assert outcome.err == f"interrupted: 2 of {NUM_PROMPTS} prompts are answered, in their order\n"


def test_a_conversation_without_an_input_is_none(built: CommandLine) -> None:
    command = f"{sys.executable} -m gristmill.cli.app chat tiny --store {built.store} <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
