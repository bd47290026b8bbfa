"""Each instruction is kept by one answer and broken by another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.ifeval import _CHECKS, follows
from gristmill.pipeline.validate.tasks.rows import find_data, read_rows
from gristmill.runtime.errors import PromptError
from tests.pipeline.validate.tasks.fake_model import FakeModel

AT_LEAST = {"relation": "at least"}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "at least", "capital_frequency": 2},
        "A BIG dog",
        "a BIG dog",
    ),
    ("change_case:english_capital", {}, "ALL OF IT.", "Not all."),
    ("change_case:english_lowercase", {}, "all of it.", "Not all."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, " say it. Done.", "Done. Say it."),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] of [place]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP. S. More", "Bye."),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "a: 1"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Day", "num_sections": 2},
        "Day 1 x Day 2 y",
        "Day 1 x",
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n- b\n* c"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and **"),
    ("detectable_format:title", {}, "<<Sacks>>\nx", "<< >>\nx"),
    ("keywords:existence", {"keywords": ["sack", "mill"]}, "A Sack at the Mill", "A sack"),
    ("keywords:forbidden_words", {"forbidden_words": ["mill"]}, "the miller", "the mill"),
    ("keywords:frequency", {**AT_LEAST, "keyword": "sack", "frequency": 2}, "sacks and sacks", "sacks"),
    (
        "keywords:letter_frequency",
        {"let_relation": "less than", "letter": "a", "let_frequency": 2},
        "A b",
        "A ba",
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"first_word": "it", "num_paragraphs": 2, "nth_paragraph": 2},
        'x\n\n"It, was',
        "x\n\nThat",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\nb\n***\nc"),
    (
        "length_constraints:number_sentences",
        {**AT_LEAST, "num_sections": 2, "num_sentences": 2},
        "One. Two!",
        "One...",
    ),
    ("length_constraints:number_words", {**AT_LEAST, "num_words": 3}, "one two three", "one two"),
    ("punctuation:no_comma", {}, "one and two", "one, two"),
    ("startend:end_checker", {"end_phrase": "Any more?"}, 'Yes. "any more?" ', "Any more? Yes."),
    ("startend:quotation", {}, ' "all of\nit" ', '"a part" of it'),
]


@pytest.mark.parametrize(("instruction", "arguments", "kept", "broken"), CASES)
def test_an_instruction_is_kept_or_broken(
    instruction: str, arguments: dict[str, Any], kept: str, broken: str
) -> None:
    assert follows(instruction, arguments, kept)
    assert not follows(instruction, arguments, broken)


def test_every_check_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(_CHECKS)


def test_a_blank_answer_keeps_nothing() -> None:
    assert not follows("punctuation:no_comma", {}, " \n")


def test_a_prompt_counts_only_if_all_its_instructions_are_kept(tmp_path: Path) -> None:
    row = {
        "id": "1",
        "prompt": "Write.",
        "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"],
        "kwargs": [{}, {}],
    }
    (measured,) = TASKS["ifeval"].measure(FakeModel(answer=lambda prompt: "No comma"), [row])
    assert measured.values == {"prompt_strict": 0.0, "instruction_strict": 0.5}


def test_items_about_the_answer_s_language_are_not_asked(data_dir: Path) -> None:
    rows = read_rows(TASKS["ifeval"], find_data(TASKS["ifeval"], data_dir))
    assert len(rows) == 354


def test_an_unknown_instruction_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "ifeval.jsonl"
    path.write_text(json.dumps({"id": "1", "prompt": "x", "instruction_id_list": ["a:b"], "kwargs": [{}]}))
    with pytest.raises(PromptError, match="found a:b"):
        read_rows(TASKS["ifeval"], path)
