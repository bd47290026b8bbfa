"""Published chat templates: what we render is what their sources and transformers' options render."""

from __future__ import annotations

import functools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.chat_template import ChatTemplate, compile_template
from gristmill.runtime.errors import RequestError

DATE = datetime(2025, 7, 10)
OTHER_RENDERER = {
    "hfjs/MadeAgents/Hammer2.1": "JavaScript prints a list as JSON where Python prints its repr",
    "hfjs/ai21labs/AI21-Jamba-Large-1.6": "leaves add_generation_prompt undefined; transformers never does",
    "lcpp/mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)": "llama.cpp's code",
    "lcpp/Phi-3-medium": "llama.cpp's code keeps a system message that the template drops",
}
"""Cases whose text another renderer made, which no Jinja with transformers' options gives."""

Case = dict[str, Any]


@pytest.fixture(scope="module")
def cases(data_dir: Path) -> list[Case]:
    lines = (data_dir / "field" / "template_cases.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def template(data_dir: Path) -> Any:
    @functools.cache
    def compiled(path: str, bos: str | None, eos: str | None) -> ChatTemplate:
        tokens = {name: text for name, text in (("bos_token", bos), ("eos_token", eos)) if text is not None}
        return compile_template((data_dir / "field" / "templates" / path).read_text(), tokens)

    return lambda case: compiled(case["template"], case["bos"], case["eos"])


def options(case: Case) -> Case:
    return {
        "tools": case.get("tools"),
        "add_generation_prompt": case["add_generation_prompt"],
        "variables": case.get("extra"),
        "now": DATE,
    }


def outcome(render: Any, messages: list[Case], case: Case) -> str:
    try:
        return str(render(messages, **options(case)))
    except RequestError as error:
        return f"refused: {error}"


def by_hand(messages: list[Case], arguments: type) -> list[Case]:
    """The form that nearly every template takes: text, never null, arguments as `arguments`."""
    normal = json.loads(json.dumps(messages))
    for message in normal:
        content = message.get("content") or ""
        message["content"] = (
            content if isinstance(content, str) else "".join(part["text"] for part in content)
        )
        for call in message.get("tool_calls") or ():
            value = call["function"]["arguments"]
            if arguments is dict and isinstance(value, str):
                call["function"]["arguments"] = json.loads(value)
            elif arguments is str and not isinstance(value, str):
                call["function"]["arguments"] = json.dumps(value, ensure_ascii=False)
    return list(normal)


def has_other_parts(messages: list[Case]) -> bool:
    parts = [part for message in messages for part in message.get("content") or () if isinstance(part, dict)]
    return any(part["type"] != "text" for part in parts)


def test_every_case_renders_as_expected_or_fails_with_the_templates_words(
    cases: list[Case], template: Any
) -> None:
    wrong = []
    for case in cases:
        found = outcome(template(case).render, case["messages"], case)
        if "expected" in case and case["id"] not in OTHER_RENDERER:
            right = found == case["expected"]
        elif "expected" in case:
            right = found != case["expected"]  # an exception that is no longer one must leave the list
        else:
            _, reason = case["expected_error"].split(": ", 1)
            right = found.startswith("refused: ") and reason in found
        if not right:
            wrong.append(case["id"])
    assert wrong == []


def test_normalised_messages_never_render_worse_than_by_hand(cases: list[Case], template: Any) -> None:
    wrong = []
    for case in cases:
        if has_other_parts(case["messages"]):
            continue
        found = outcome(template(case).apply, case["messages"], case)
        good = {outcome(template(case).render, by_hand(case["messages"], kind), case) for kind in (dict, str)}
        if found not in good | {case.get("expected")}:
            wrong.append(case["id"])
    assert wrong == []


def test_normalised_text_shows_no_python_and_no_double_escapes(cases: list[Case], template: Any) -> None:
    """Templates that print a list of parts, None or an escaped string where transformers lets them."""
    wrong = []
    for case in cases:
        kind = case["id"].rpartition("/")[2]
        found = outcome(template(case).apply, case["messages"], case)
        if found.startswith("refused: ") or not case["id"].startswith("ref/"):
            continue
        shown = {
            "content_parts": "'type'" in found or '"type"' in found or "there" not in found,
            "null_content": "None" in found,
            "toolcall_str": '\\"city' in found,
        }
        if shown.get(kind):
            wrong.append(case["id"])
    assert wrong == []


def test_normalising_mends_all_but_what_only_the_model_could(cases: list[Case], template: Any) -> None:
    refused = set()
    for case in cases:
        if "expected_error" in case and outcome(template(case).apply, case["messages"], case).startswith(
            "refused"
        ):
            refused.add(case["id"].split("/")[1])
    assert refused == {
        "MiroThinker",  # assigns to its messages, which the sandbox forbids
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",  # a template for chats with tools only
        "fireworks-ai-llama-3-firefunction-v2",  # wants variables `functions` and `datetime`
        "google-gemma-2-2b-it",  # has no system role and no tool role
        "chujiezheng-alpaca",  # has no tool role
        "chujiezheng-amberchat",
        "chujiezheng-falcon-instruct",
    }


def test_images_are_refused_by_name(cases: list[Case], template: Any) -> None:
    found = {
        outcome(template(case).apply, case["messages"], case)
        for case in cases
        if has_other_parts(case["messages"])
    }
    assert found
    assert all("part that is not text" in text for text in found)
