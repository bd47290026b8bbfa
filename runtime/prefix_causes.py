"""Why two prompts part: what kind of thing stands where they begin to differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

__all__ = ["CAUSES", "Cause", "Difference", "find_difference"]

Cause = Literal["timestamp", "date", "id", "nonce", "number", "whitespace", "text", "not_cached"]
"""`id` is a UUID or a name with a number in it, `nonce` letters and digits of no known form, `text`
anything else. `not_cached` is no difference: the cache no longer, or not yet, has what is the same."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = (
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?"
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|\d{{1,2}}\.? {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
)
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm])?(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"

# The first that covers the difference in both prompts counts.
_FORMS: Mapping[Cause, re.Pattern[str]] = MappingProxyType(
    {
        "id": re.compile(rf"{_UUID}|\b[A-Za-z]{{2,16}}[_-](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{{4,}}\b"),
        "timestamp": re.compile(rf"(?:{_DAY}[T, ]*)?{_TIME}|\b1\d{{9}}(?:\d{{3}}|\.\d+)?\b"),
        "date": re.compile(_DAY),
        "nonce": re.compile(r"\b(?=[\w+/-]*\d)(?=[\w+/-]*[A-Za-z])[\w+/-]{8,}=*"),
        "number": re.compile(r"\d[\d.,]*"),
    }
)
_SHOWN_BEFORE = 20
_SHOWN = 40
_SAME_AFTER_SPACES = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """What stands where two prompts part; `here` and `there` are at most 40 characters of each."""

    cause: Cause
    here: str
    there: str


def find_difference(here: str, there: str) -> Difference:
    """The difference of two texts that are alike up to some place; they reach a little beyond it."""
    pairs = enumerate(zip(here, there, strict=False))
    place = next((index for index, (a, b) in pairs if a != b), min(len(here), len(there)))
    return Difference(_cause(here, there, place), _excerpt(here, place), _excerpt(there, place))


def _cause(here: str, there: str, place: int) -> Cause:
    if _differ_in_spaces(here[place:], there[place:]):
        return "whitespace"
    for cause, form in _FORMS.items():
        if _covers(form, here, place) and _covers(form, there, place):
            return cause
    return "text"


def _differ_in_spaces(here: str, there: str) -> bool:
    if not (here[:1].isspace() or there[:1].isspace()):
        return False
    bare = "".join(here.split())[:_SAME_AFTER_SPACES]
    return bool(bare) and bare == "".join(there.split())[:_SAME_AFTER_SPACES]


def _covers(form: re.Pattern[str], text: str, place: int) -> bool:
    return any(match.start() <= place <= match.end() for match in form.finditer(text))


def _excerpt(text: str, place: int) -> str:
    start = max(0, place - _SHOWN_BEFORE)
    return text[start : start + _SHOWN]
