"""Chat templates: Jinja in a sandbox, with the options and helpers that published templates rely on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from gristmill.runtime.chat_form import Message, MessageForm, detect_form
from gristmill.runtime.chat_messages import normalise_messages
from gristmill.runtime.errors import ModelError, RequestError

__all__ = ["ChatTemplate", "compile_template", "read_templates", "select_template"]

_MAX_CHARACTERS = 16 * 1024 * 1024
_MAX_LOOP = 1_000_000
_HELPERS = ("range", "raise_exception", "strftime_now")
_INPUTS = ("messages", "tools", "add_generation_prompt")
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, eq=False)
class ChatTemplate:
    """One compiled template and the form of messages that it takes."""

    compiled: jinja2.Template
    special_tokens: Mapping[str, str]
    form: MessageForm

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The text for messages exactly as given, as transformers renders it.

        `variables` are the template's own (`enable_thinking`, `documents`, ...).
        Raises RequestError with the template's own message when it refuses.
        """
        inputs = {
            "messages": messages,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        variables = variables or {}
        if taken := sorted(set(variables) & {*_HELPERS, *_INPUTS, *self.special_tokens}):
            raise RequestError(
                f"chat template variable {taken[0]!r} is not free to set", field="chat_template_kwargs"
            )
        return _render(self.compiled, {**self.special_tokens, **variables, **inputs}, now)

    def apply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """`render` after bringing messages in OpenAI form into the form that this template takes."""
        return self.render(
            normalise_messages(messages, self.form),
            tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            now=now,
        )


def compile_template(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Compile one template and find out by rendering small chats what it takes. Raises ModelError."""
    try:
        compiled = _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"the chat template is wrong in line {error.lineno}", found=error.message) from error

    def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> str:
        return _render(compiled, {**special_tokens, "messages": messages, "tools": tools}, None)

    form = replace(detect_form(render), developer=_knows_developer(source))
    return ChatTemplate(compiled, special_tokens, form)


def read_templates(
    side_files: Mapping[str, bytes], settings: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> dict[str, ChatTemplate]:
    """All templates of a model by name; a file of its own outranks `tokenizer_config.json`."""
    sources: dict[str, str] = {}
    for value in (settings.get("chat_template"), _processor_template(side_files)):
        sources |= _named_sources(value)
    for path, data in side_files.items():
        if path == "chat_template.jinja":
            sources["default"] = data.decode()
        elif path.startswith("additional_chat_templates/"):
            sources[path.removeprefix("additional_chat_templates/").removesuffix(".jinja")] = data.decode()
    return {name: compile_template(source, special_tokens) for name, source in sources.items()}


def select_template(
    templates: Mapping[str, ChatTemplate], tools: Sequence[Mapping[str, Any]] | None
) -> ChatTemplate:
    """`tool_use` for a chat with tools, else `default`, else the only one. Raises RequestError."""
    if tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" in templates:
        return templates["default"]
    if len(templates) == 1:
        return next(iter(templates.values()))
    raise RequestError(
        "the model has no default chat template",
        field="messages",
        code="no_chat_template",
        found=", ".join(sorted(templates)) or "none at all",
        hint="use plain completions, or add chat_template.jinja to the model",
    )


def _knows_developer(source: str) -> bool:
    """Whether a template compares a role with "developer"; many would print any role they are given."""
    return re.search(r"""(['"])developer\1""", source) is not None


def _named_sources(value: object) -> dict[str, str]:
    match value:
        case None:
            return {}
        case str():
            return {"default": value}
        case list():
            entries = [
                entry for entry in value if isinstance(entry, Mapping) and {"name", "template"} <= set(entry)
            ]
            if len(entries) == len(value):
                return {str(entry["name"]): str(entry["template"]) for entry in entries}
    raise ModelError(
        "tokenizer_config.json has a chat_template that is neither text nor a list of {name, template}",
        found=type(value).__name__,
    )


def _processor_template(side_files: Mapping[str, bytes]) -> object:
    data = side_files.get("chat_template.json")
    if data is None:
        return None
    try:
        return json.loads(data)["chat_template"]
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError("chat_template.json has no chat_template", found=str(error)) from error


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what training learns from; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it; Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _bounded_range() -> Callable[..., range]:
    """`range` whose calls in one rendering share a budget: the sandbox bounds only each call by itself."""
    left = _MAX_LOOP

    def bounded(*arguments: int) -> range:
        nonlocal left
        numbers = jinja2.sandbox.safe_range(*arguments)
        left -= len(numbers)
        if left < 0:
            raise OverflowError(f"more than {_MAX_LOOP} numbers from range() in one chat")
        return numbers

    return bounded


def _render(template: jinja2.Template, context: Mapping[str, Any], now: datetime | None) -> str:
    def strftime_now(form: str) -> str:
        return (now or datetime.now()).strftime(form)

    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(context, range=_bounded_range(), strftime_now=strftime_now):
            size += len(piece)
            if size > _MAX_CHARACTERS:
                raise OverflowError(f"more than {_MAX_CHARACTERS} characters of text")
            pieces.append(piece)
    except _RENDER_ERRORS as error:
        raise RequestError(
            f"the chat template refuses these messages: {str(error) or type(error).__name__}",
            field="messages",
            code="chat_template_error",
        ) from error
    return "".join(pieces)
