"""Chat templates: the sandbox, its helpers and bounds, and the choice among named templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from gristmill.runtime.chat_template import compile_template, read_templates, select_template
from gristmill.runtime.errors import ModelError, RequestError

USER = [{"role": "user", "content": "<Ünïcode> & 'more'"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def render(source: str, messages: Sequence[Mapping[str, Any]] = USER, **options: Any) -> str:
    return compile_template(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, **options)


def test_special_tokens_are_variables() -> None:
    assert render("{{ bos_token }}x{{ eos_token }}{{ pad_token }}") == "<s>x</s>"


def test_tojson_keeps_html_and_unicode() -> None:
    assert render("{{ messages[0].content | tojson }}") == "\"<Ünïcode> & 'more'\""


def test_tojson_takes_the_options_of_json() -> None:
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_block_lines_leave_no_trace() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_loops_may_break_and_continue() -> None:
    body = "{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}"
    assert render("{% for i in range(9) %}" + body + "{% endfor %}") == "023"


def test_the_generation_tag_renders_its_body() -> None:
    source = "{% for m in messages %}a{% generation %}{{ m.role }}{% endgeneration %}b{% endfor %}"
    assert render(source) == "auserb"


def test_the_date_is_the_one_given() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}", now=datetime(2025, 7, 10)) == "10 Jul 2025"


def test_own_variables_reach_the_template() -> None:
    assert render("{{ enable_thinking }}", variables={"enable_thinking": False}) == "False"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "raise_exception"])
def test_a_variable_cant_replace_what_is_ours(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name!r} is not free"):
        render("x", variables={name: "y"})


def test_no_tools_and_an_empty_list_are_the_same() -> None:
    assert render("{{ tools is none }}", tools=[]) == "True"


def test_a_refusal_carries_the_templates_words() -> None:
    with pytest.raises(RequestError, match="Only user and assistant!") as caught:
        render("{{ raise_exception('Only user and assistant!') }}")
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ messages + 1 }}",
        "{{ messages[7].content | upper }}",
        "{{ 1 / 0 }}",
        "{{ {}['a'] + 'b' }}",
    ],
)
def test_faults_inside_a_template_are_request_errors(source: str) -> None:
    with pytest.raises(RequestError, match="refuses these messages"):
        render(source)


def test_a_wrong_template_names_its_line() -> None:
    with pytest.raises(ModelError, match="wrong in line 2"):
        compile_template("fine\n{% if %}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% set messages[0].role = 'system' %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises((RequestError, ModelError)):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10000000000) %}x{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{{ messages[0].content * 500 }}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
    ids=["one-range", "nested-ranges", "much-text", "recursion"],
)
def test_a_rendering_is_bounded_in_time_and_memory(source: str) -> None:
    with pytest.raises(RequestError):
        render(source)


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": None}]
    template = compile_template("{{ messages[0].content }}", {})
    template.apply(messages)
    assert messages == [{"role": "user", "content": None}]


def named(**sources: str) -> str:
    return json.dumps({"chat_template": [{"name": name, "template": text} for name, text in sources.items()]})


def text_of(
    settings: str, tools: Sequence[Mapping[str, Any]] | None, files: Mapping[str, bytes] | None = None
) -> str:
    templates = read_templates(files or {}, json.loads(settings), {})
    return select_template(templates, tools).render(USER, tools)


def test_tool_use_is_chosen_when_there_are_tools() -> None:
    settings = named(default="plain", tool_use="tools")
    assert (text_of(settings, None), text_of(settings, TOOLS)) == ("plain", "tools")


def test_default_serves_tools_where_there_is_no_tool_use() -> None:
    assert text_of(named(default="plain", rag="documents"), TOOLS) == "plain"


def test_a_template_file_outranks_the_config() -> None:
    assert text_of('{"chat_template": "old"}', None, {"chat_template.jinja": b"new"}) == "new"


def test_a_file_can_add_a_named_template() -> None:
    files = {"additional_chat_templates/tool_use.jinja": b"tools"}
    assert text_of('{"chat_template": "plain"}', TOOLS, files) == "tools"


def test_a_processors_template_is_read() -> None:
    assert text_of("{}", None, {"chat_template.json": b'{"chat_template": "processor"}'}) == "processor"


def test_a_model_without_template_says_so() -> None:
    with pytest.raises(RequestError, match="no default chat template; found none at all"):
        text_of("{}", None)


def test_a_template_of_another_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="neither text nor a list"):
        text_of('{"chat_template": {"a": 1}}', None)
