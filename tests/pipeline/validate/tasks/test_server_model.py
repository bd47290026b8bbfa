"""Models behind a server: the same scores as in this process, and servers that can't be scored or fail."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gristmill.facade import engine_folder, validate
from gristmill.pipeline.validate.tasks.model import Continuation, Prompt
from gristmill.pipeline.validate.tasks.open_model import engine_model
from gristmill.pipeline.validate.tasks.server_model import ServerAddress, ServerModel
from gristmill.runtime.errors import InputError, OutsideError, UnsupportedError
from tests.command_line import CommandLine
from tests.served import RunningServer, serving

ASKED = [Continuation(f"The miller has {n} sacks of", f" flour{' and bread' * n}") for n in range(10)]


@pytest.fixture(scope="module")
def server(built: CommandLine) -> Iterator[RunningServer]:
    with serving(built) as running:
        yield running


def test_scores_are_those_of_the_engine_itself(built: CommandLine, server: RunningServer) -> None:
    with closing(ServerModel(ServerAddress(server.url))) as model:
        served = model.score(ASKED)
    with closing(engine_model(engine_folder("tiny", store=built.store))) as model:
        own = model.score(ASKED)
    assert [each.logprob for each in served] == pytest.approx([each.logprob for each in own], abs=1e-3)
    assert [each.greedy for each in served] == [each.greedy for each in own]


def test_a_server_is_validated_like_the_artifact_that_it_serves(
    built: CommandLine, server: RunningServer, tmp_path: Path
) -> None:
    rows = [{"id": str(n), "context": f"The miller has {n}", "target": " sacks"} for n in range(8)]
    (tmp_path / "lambada.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    served, own = (
        validate(subject, tasks=["lambada"], data=tmp_path, store=built.store).tasks[0].result.values("loss")
        for subject in (server.url, "tiny")
    )
    assert served == pytest.approx(own, abs=1e-3)


def test_answers_are_those_of_the_engine_itself(built: CommandLine, server: RunningServer) -> None:
    chat = ({"role": "user", "content": "How many sacks?"},)
    prompts = [Prompt("Once upon a", max_tokens=12), Prompt(messages=chat, max_tokens=12)]
    with closing(ServerModel(ServerAddress(server.url))) as model:
        served = model.generate(prompts)
    with closing(engine_model(engine_folder("tiny", store=built.store))) as model:
        assert served == model.generate(prompts)


def test_a_model_that_the_server_does_not_have_is_refused(server: RunningServer) -> None:
    with pytest.raises(InputError, match="expected tiny"):
        ServerModel(ServerAddress(server.url, "other"))


def test_a_prompt_that_the_server_refuses_is_told_in_its_words(server: RunningServer) -> None:
    with closing(ServerModel(ServerAddress(server.url))) as model, pytest.raises(InputError, match="context"):
        model.generate([Prompt("word " * 600)])


@contextmanager
def _fake(status: int, answer: object) -> Iterator[str]:
    """A server with one model that answers every completion so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "fake"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(status, answer)

        def _send(self, status: int, answer: object) -> None:
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, {"choices": [{"text": "x", "logprobs": None}]}),
        (200, {"choices": []}),
        (
            200,
            {"choices": [{"logprobs": {"text_offset": [0], "token_logprobs": [None], "top_logprobs": [{}]}}]},
        ),
        (
            200,
            {
                "choices": [
                    {
                        "logprobs": {
                            "text_offset": [0, 4],
                            "token_logprobs": [None, math.nan],
                            "top_logprobs": [None, {"x": math.nan}],
                        }
                    }
                ]
            },
        ),
        (400, {"error": {"message": "echo is not supported"}}),
    ],
)
def test_a_server_that_scores_no_prompts_is_refused_by_name(status: int, answer: object) -> None:
    with (
        _fake(status, answer) as url,
        closing(ServerModel(ServerAddress(url))) as model,
        pytest.raises(UnsupportedError, match=f"{url} does not score prompts"),
    ):
        model.score(ASKED)


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (500, {"error": {"message": "out of memory"}}, "answers 500; found out of memory"),
        (500, b"[" * 100_000, r"answers 500; found \[\["),
        (200, b"<html>", "answers with no JSON"),
        (200, b"[" * 100_000, "answers with no JSON"),
        (200, {"detail": "no"}, "answers with no completion"),
        (200, {"choices": [{"text": 7}]}, "answers with no completion"),
        (200, {"choices": [{"text": ["Once"]}]}, "answers with no completion"),
    ],
)
def test_a_server_that_answers_with_an_error_is_the_outside_world_s_fault(
    status: int, answer: object, message: str
) -> None:
    with (
        _fake(status, answer) as url,
        closing(ServerModel(ServerAddress(url))) as model,
        pytest.raises(OutsideError, match=message),
    ):
        model.generate([Prompt("Once")])


def test_a_server_that_is_not_there_is_told_by_its_address() -> None:
    with pytest.raises(OutsideError, match=r"can't reach http://127\.0\.0\.1:9"):
        ServerModel(ServerAddress("http://127.0.0.1:9"))
