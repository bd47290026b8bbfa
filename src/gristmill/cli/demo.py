"""`make demo`: build the demo recipe, serve the artifact, ask it one question through the openai client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gristmill.cli.output import say
from gristmill.runtime.errors import EXIT_DONE, InternalError

__all__ = ["ask", "main", "serving"]

QUESTION = "What is the capital of France?"
STORE = Path("build/demo-store")


def main() -> int:
    """Run the whole demonstration and return the exit code."""
    say("$ gristmill build demo")
    built = subprocess.run(_gristmill("build", "demo"), check=False, stdout=subprocess.PIPE, text=True)
    if built.returncode != EXIT_DONE:
        return built.returncode
    reference = built.stdout.strip().splitlines()[-1]
    print(reference, flush=True)
    say(f"\n$ gristmill serve {reference.split('@')[0]}")
    with serving(reference) as url:
        say(f"\n> {QUESTION}")
        print(ask(url, QUESTION), flush=True)
    return EXIT_DONE


@contextmanager
def serving(reference: str) -> Iterator[str]:
    """A server process for `reference` on a free port; yields its base URL and stops it afterwards."""
    process = subprocess.Popen(
        _gristmill("serve", reference, "--port", "0", "--log-level", "warning"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if " at http" not in line:
            raise InternalError("the server ended before it was ready", found=f"exit code {process.wait()}")
        say(line)
        yield line.split(" at ")[1].split()[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


def ask(url: str, question: str) -> str:
    """One chat completion, greedy, from the first model that the server lists."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="not-needed")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=48, temperature=0
    )
    return answer.choices[0].message.content or ""


def _gristmill(*arguments: str) -> list[str]:
    store = os.environ.get("GRISTMILL_STORE", str(STORE))
    return [sys.executable, "-m", "gristmill.cli.app", *arguments, "--store", store]


if __name__ == "__main__":
    sys.exit(main())
