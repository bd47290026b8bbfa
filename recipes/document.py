"""A recipe's YAML as plain values, with the line that each value came from.

YAML 1.2 scalars: only `true` and `false` are booleans, dates stay text, `1e-3`
is a number. Tags, repeated keys and null values are refused; aliases and merge
keys are read, within bounds that no honest recipe reaches.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from gristmill.recipes.faults import Fault, Key
from gristmill.runtime.errors import RecipeError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_VALUES", "Document", "parse_document", "parse_value"]

MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_VALUES = 10_000
"""Values after aliases are expanded."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values (dict, tuple, str, int, float, bool) with their origins.

    `origins` maps a key path to the place that wrote it, such as
    `demo.yaml:12`; `faults` are those found so far.
    """

    name: str
    value: Any
    origins: dict[Key, str]
    faults: tuple[Fault, ...] = ()

    def origin(self, key: Key) -> str:
        """Where the value at `key`, or the nearest one around it, was written."""
        for length in range(len(key), -1, -1):
            if (origin := self.origins.get(key[:length])) is not None:
                return origin
        return self.name


def parse_document(text: str, name: str) -> Document:
    """Read one YAML mapping; `name` labels its lines. Raises RecipeError if it isn't YAML."""
    node = _compose(text, name)
    if node is None:
        raise RecipeError(f"recipe {name}", found="nothing in it", expected="keys and values")
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise RecipeError(f"{name}:{line}", found="no keys", expected="keys and values such as `name: demo`")
    reader = _Reader(name)
    value = reader.value(node, ())
    return Document(name, value, reader.origins, tuple(reader.faults))


def parse_value(text: str, name: str) -> Document:
    """Read any one YAML value; a null is allowed at the top. Raises RecipeError."""
    node = _compose(text, name)
    if node is None or (_is_unquoted(node) and _plain(node.value) is None):
        return Document(name, None, {})
    reader = _Reader(name, lines=False)
    value = reader.value(node, ())
    return Document(name, value, reader.origins, tuple(reader.faults))


def _compose(text: str, name: str) -> yaml.Node | None:
    if len(text) > MAX_BYTES:
        raise RecipeError(f"recipe {name}", found=f"{len(text)} characters", expected=f"at most {MAX_BYTES}")
    try:
        _check_events(text, name)
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _not_yaml(error, name) from error
    return node


def _check_events(text: str, name: str) -> None:
    """Refuse tags and deep nesting before anything recursive sees them."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        place = f"{name}:{event.start_mark.line + 1}" if event.start_mark else name
        if (tag := getattr(event, "tag", None)) is not None:
            raise RecipeError(place, found=f"the tag {tag}", expected="plain values without tags")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise RecipeError(place, found=f"more than {MAX_DEPTH} levels", expected="fewer")


def _not_yaml(error: yaml.YAMLError, name: str) -> RecipeError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    place = name if mark is None else f"{name}:{mark.line + 1}"
    return RecipeError(
        place, found=problem, expected="one YAML document", hint="check quotes and indentation"
    )


def _plain(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _is_merge(node: yaml.Node) -> bool:
    return _is_unquoted(node) and node.value == "<<"


def _is_unquoted(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values, collecting origins and faults on the way."""

    name: str
    lines: bool = True
    origins: dict[Key, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    values: int = 0
    depth: int = 0

    def value(self, node: yaml.Node, key: Key) -> Any:
        self.values += 1
        self.depth += 1
        try:
            return self.bounded_value(node, key)
        finally:
            self.depth -= 1

    def bounded_value(self, node: yaml.Node, key: Key) -> Any:
        if self.values > MAX_VALUES:
            raise RecipeError(f"recipe {self.name}", found=f"more than {MAX_VALUES} values", expected="fewer")
        if self.depth > MAX_DEPTH:
            raise RecipeError(
                self.place(node), found="a value that contains itself", expected="no such alias"
            )
        self.origins.setdefault(key, self.place(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.value(item, (*key, index)) for index, item in enumerate(node.value))
        value = _plain(node.value) if _is_unquoted(node) else node.value
        if value is None:
            self.fault(node, key, "nothing", "a value, or no such key")
        return value

    def mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in sorted(node.value, key=lambda pair: not _is_merge(pair[0])):
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(key_node, key, "a collection as a key", "text")
            elif _is_merge(key_node):
                merged = self.merge(value_node, key) | merged
            elif key_node.value in own:
                self.fault(key_node, (*key, key_node.value), "the key twice", "each key once")
            else:
                inner = (*key, key_node.value)
                self.origins[inner] = self.place(key_node)
                own[key_node.value] = self.value(value_node, inner)
        return merged | own

    def merge(self, node: yaml.Node, key: Key) -> dict[str, Any]:
        """The mappings that a `<<` key brings in; earlier ones win."""
        merged: dict[str, Any] = {}
        for part in node.value if isinstance(node, yaml.SequenceNode) else (node,):
            value = self.value(part, key)
            if isinstance(value, dict):
                merged = value | merged
            else:
                self.fault(part, key, "a << that is not a mapping", "an alias of a mapping")
        return merged

    def place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}" if self.lines else self.name

    def fault(self, node: yaml.Node, key: Key, found: str, expected: str) -> None:
        self.faults.append(Fault(self.place(node), key, found, expected))
