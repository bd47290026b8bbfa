"""`make demo`: build the demo recipe, serve the artifact, ask it one question through the openai client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gristmill.cli.output import say
from gristmill.runtime.errors import EXIT_DONE
from gristmill.runtime.loadtest.server_process import started_server

__all__ = ["ask", "main"]

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
    with started_server(
        _gristmill("serve", reference, "--port", "0", "--json", "--log-level", "warning")
    ) as server:
        say(f"serving {reference.split(':')[0]} at {server.url} (ready)")
        say(f"\n> {QUESTION}")
        print(ask(server.url, QUESTION), flush=True)
    return EXIT_DONE


def ask(url: str, question: str) -> str:
    """One chat completion, greedy, from the first model that the server lists."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="not-needed") as client:
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
