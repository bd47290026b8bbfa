"""YAML is read strictly and within bounds, and every value knows its line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.recipes.document import MAX_BYTES, parse_document
from gristmill.runtime.errors import RecipeError


def refusal(text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_document(text, "r.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-7", -7),
        ("010", 10),
        ("0x10", 16),
        ("1e-3", 0.001),
        ("2.5", 2.5),
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-11-29", "2026-11-29"),
        (".nan", ".nan"),
        ("'4'", "4"),
        ("[1, 2]", (1, 2)),
        ("{x: 1}", {"x": 1}),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    held = parse_document(f"a: {text}", "r.yaml").value["a"]
    assert held == value
    assert type(held) is type(value)


def test_every_value_knows_its_line() -> None:
    document = parse_document("a: 1\nb:\n  - x\n  - c: 2\n", "r.yaml")
    assert document.origin(("a",)) == "r.yaml:1"
    assert document.origin(("b", 0)) == "r.yaml:3"
    assert document.origin(("b", 1, "c")) == "r.yaml:4"
    assert document.origin(("b", 1, "missing")) == "r.yaml:4"


def test_aliases_and_merge_keys_are_read() -> None:
    document = parse_document("base: &b {x: 1, y: 2}\nuse: {y: 3, <<: *b}\nsame: *b\n", "r.yaml")
    assert document.value["use"] == {"x": 1, "y": 3}
    assert document.value["same"] == {"x": 1, "y": 2}


def test_repeated_keys_are_all_faults() -> None:
    document = parse_document("a: 1\na: 2\nb: {c: 1, c: 2}\n", "r.yaml")
    assert [(fault.place, fault.key) for fault in document.faults] == [
        ("r.yaml:2", ("a",)),
        ("r.yaml:3", ("b", "c")),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found nothing in it"),
        ("# only a comment\n", "found nothing in it"),
        ("- a\n- b\n", "r.yaml:1; found no keys"),
        ("a: [1\nb: 2\n", "r.yaml:2; found"),
        ("a: 1\n---\nb: 2\n", "expected one YAML document"),
        ("a: \x00", "expected one YAML document"),
        ("a: *nowhere", "found undefined alias"),
        ("a: !!python/object:os.system x", "found the tag tag:yaml.org,2002:python/object:os.system"),
        ("\n\na: !!int 4", "r.yaml:3; found the tag"),
        ("a: " + "[" * 40 + "]" * 40, "found more than 32 levels"),
        ("a: " + "[" * 100_000, "found more than 32 levels"),
        ("a: &x [*x]", "found a value that contains itself"),
        ("a: &x {<<: *x}", "found a value that contains itself"),
        ("#" * (MAX_BYTES + 1), "expected at most"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(text: str, said: str) -> None:
    assert said in refusal(text)


def test_aliases_that_explode_are_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "found more than 10000 values" in refusal("\n".join(lines))


def test_merge_keys_that_explode_are_bounded() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 12)]
    assert "found more than 10000 values" in refusal("\n".join(lines))


@settings(max_examples=150)
@given(st.text(alphabet="ab:-[]{}&*<!?|>'\"#%@ \n\t0.", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(RecipeError):
        assert isinstance(parse_document(text, "r.yaml").value, dict)
