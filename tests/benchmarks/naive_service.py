"""The service that people write first: transformers, bfloat16, one request at a time.

    python -m tests.benchmarks.naive_service MODEL_FOLDER

Prints a line of JSON with its URL, then answers /v1/completions: each answer
comes whole, as one event, when it is done.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gristmill.runtime.machine import cpu_limits


class _Service(HTTPServer):
    request_queue_size = 256

    def __init__(self, folder: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def generate(self, prompt: str, count: int) -> tuple[str, dict[str, int]]:
        """Text of `count` tokens, and usage."""
        inputs = self.tokenizer(prompt, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        with torch.inference_mode():
            output = self.model.generate(
                **inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
            )
        text = self.tokenizer.decode(output[0, length:])
        return text, {"prompt_tokens": length, "completion_tokens": output.shape[1] - length}


class _Handler(BaseHTTPRequestHandler):
    server: _Service

    def do_GET(self) -> None:
        self._answer("application/json", json.dumps({"data": [{"id": "naive"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text, usage = self.server.generate(body["prompt"], body["max_tokens"])
        answer = json.dumps({"choices": [{"index": 0, "text": text}], "usage": usage})
        if body.get("stream"):
            self._answer("text/event-stream", f"data: {answer}\n\ndata: [DONE]\n\n")
        else:
            self._answer("application/json", answer)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


def main() -> None:
    """Serve until ended."""
    torch.set_num_threads(cpu_limits().effective)
    service = _Service(sys.argv[1])
    print(json.dumps({"url": f"http://127.0.0.1:{service.server_port}"}), flush=True)
    service.serve_forever()


if __name__ == "__main__":
    main()
