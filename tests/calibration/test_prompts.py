"""From prompt files to token samples: shares, packing, order, and all faults at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.runtime.chat_template import compile_template
from gristmill.runtime.errors import PromptError
from gristmill.runtime.tokenizer import Tokenizer, load_tokenizer

WORDS = ["amber", "basil", "cedar", "delta", "ember", "fable", "grain", "hazel", "ivory", "jolly"]
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": {}}}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def with_template(tokenizer: Tokenizer, source: str) -> Tokenizer:
    return replace(tokenizer, templates={"default": compile_template(source, tokenizer.special_tokens)})


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "reference": f"About {text}.", **more}


def write_chats(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    for name in WORDS[:3]:
        write_chats(folder / f"{name}.jsonl", [chat(f"{name} {number}") for number in range(60)])
    paragraphs = [f"{word} {number} " + " ".join(WORDS) for word in WORDS for number in range(10)]
    (folder / "prose.txt").write_text("\n\n".join(paragraphs))
    (folder / "rows.jsonl").write_text("".join(f"{list(range(n, n + 32))}\n" for n in range(20)))
    return folder


def ask(folder: Path, *names: str, shares: Sequence[float] | None = None, **more: Any) -> PromptSettings:
    kinds = {"rows.jsonl": "tokens"}
    sources = tuple(
        PromptSource(folder / name, share, kinds.get(name))  # type: ignore[arg-type]
        for name, share in zip(names, shares or [1.0] * len(names), strict=True)
    )
    return PromptSettings(sources, **{"samples": 8, "max_tokens": 32, **more})


def test_packed_samples_have_the_exact_size(folder: Path, tokenizer: Tokenizer) -> None:
    found = load_calibration(ask(folder, "amber.jsonl", "prose.txt"), tokenizer)
    assert [len(sequence) for sequence in found.sequences] == [32] * 8
    assert found.tokens == 256


def test_shares_are_kept_to_the_token(folder: Path, tokenizer: Tokenizer) -> None:
    asked = ask(folder, "amber.jsonl", "basil.jsonl", "prose.txt", shares=[1, 3, 4], samples=16)
    found = load_calibration(asked, tokenizer)
    assert [source.tokens for source in found.sources] == [64, 192, 256]


def test_chats_are_whole_conversations_in_the_models_own_form(folder: Path, tokenizer: Tokenizer) -> None:
    found = load_calibration(ask(folder, "amber.jsonl", pack=False, shuffle=False, max_tokens=99), tokenizer)
    text = tokenizer.decode(found.sequences[3], skip_special_tokens=False)
    assert text.endswith("user\namber 3<|im_end|>\n<|im_start|>assistant\nAbout amber 3.<|im_end|>\n")


def test_unpacked_samples_hold_one_prompt_each_and_are_cut(folder: Path, tokenizer: Tokenizer) -> None:
    found = load_calibration(ask(folder, "amber.jsonl", pack=False, max_tokens=20), tokenizer)
    assert (len(found.sequences), found.prompts) == (8, 8)
    assert all(len(sequence) == 20 for sequence in found.sequences)
    assert found.sources[0].truncated == 8


def test_plain_text_in_order_is_the_texts_first_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    found = load_calibration(ask(folder, "prose.txt", shuffle=False), tokenizer)
    stream = [token for sequence in found.sequences for token in sequence]
    assert stream == tokenizer.encode((folder / "prose.txt").read_text(), add_special_tokens=True)[:256]


def test_ready_made_rows_are_used_as_they_are(folder: Path, tokenizer: Tokenizer) -> None:
    found = load_calibration(ask(folder, "rows.jsonl"), tokenizer)
    assert found.sequences == tuple(tuple(range(n, n + 32)) for n in range(8))


def test_rows_take_their_share_of_the_samples(folder: Path, tokenizer: Tokenizer) -> None:
    found = load_calibration(ask(folder, "rows.jsonl", "amber.jsonl", shares=[1, 3]), tokenizer)
    assert found.sequences[6:] == (tuple(range(32)), tuple(range(1, 33)))
    assert [source.tokens for source in found.sources] == [64, 192]


def test_the_same_settings_give_the_same_digest(folder: Path, tokenizer: Tokenizer) -> None:
    asked = ask(folder, "amber.jsonl", "prose.txt")
    assert load_calibration(asked, tokenizer) == load_calibration(asked, tokenizer)


@pytest.mark.parametrize("change", [{"seed": 1}, {"shuffle": False}, {"max_tokens": 31}, {"samples": 7}])
def test_another_setting_gives_another_digest(
    folder: Path, tokenizer: Tokenizer, change: dict[str, Any]
) -> None:
    asked = ask(folder, "amber.jsonl", "prose.txt")
    changed = load_calibration(replace(asked, **change), tokenizer)
    assert changed.digest != load_calibration(asked, tokenizer).digest


def test_a_days_date_in_the_template_does_not_change_the_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    dated = with_template(tokenizer, "{{ strftime_now('%Y-%m-%d') }}: {{ messages[0].content }}")
    found = load_calibration(ask(folder, "amber.jsonl", pack=False, shuffle=False), dated)
    assert tokenizer.decode(found.sequences[0], skip_special_tokens=False) == "2025-01-01: amber 0"


def test_a_small_source_is_reported_and_the_rest_filled_up(
    tmp_path: Path, folder: Path, tokenizer: Tokenizer
) -> None:
    small = write_chats(tmp_path / "small.jsonl", [chat("only one")])
    asked = PromptSettings(
        (PromptSource(small), PromptSource(folder / "amber.jsonl")), samples=8, max_tokens=32
    )
    found = load_calibration(asked, tokenizer)
    assert found.tokens == 256
    tokens = found.sources[0].tokens
    assert found.warnings == (f"small.jsonl holds {tokens} tokens of the 128 that its share asks for",)


def test_too_few_tokens_are_refused_with_the_number_there_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write_chats(tmp_path / "few.jsonl", [chat("one"), chat("two")])
    asked = PromptSettings((PromptSource(path),), samples=9, max_tokens=32)
    with pytest.raises(
        PromptError, match=r"found 64 tokens in 2 prompts; expected 288 tokens .*at most 2 samples"
    ):
        load_calibration(asked, tokenizer)


def test_fewer_samples_are_taken_where_that_is_allowed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write_chats(tmp_path / "few.jsonl", [chat("one"), chat("two")])
    asked = PromptSettings((PromptSource(path),), samples=9, max_tokens=32, allow_fewer=True)
    found = load_calibration(asked, tokenizer)
    assert (found.tokens, found.warnings) == (64, ("2 samples of 32 tokens instead of 9",))


def test_tools_that_the_template_leaves_out_are_written_into_the_text(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    record = chat("x", tools=[TOOL], reference=[{"name": "look_up", "arguments": {"what": "x"}}])
    path = write_chats(tmp_path / "a.jsonl", [record])
    asked = PromptSettings((PromptSource(path),), samples=1, max_tokens=400, pack=False)
    found = load_calibration(asked, tokenizer)
    text = tokenizer.decode(found.sequences[0], skip_special_tokens=False)
    assert 'call these tools:\n[{"type": "function"' in text
    assert '<tool_call>{"name": "look_up", "arguments": {"what": "x"}}</tool_call><|im_end|>' in text
    assert found.warnings == (
        "a.jsonl: the chat template shows no tools; those of 1 chats were put in their text",
    )


def test_tools_go_through_the_template_that_renders_them(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = (
        "{% for tool in tools or [] %}T:{{ tool.function.name }} {% endfor %}"
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}C:{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    record = chat("x", tools=[TOOL], reference=[{"name": "look_up", "arguments": '{"what": "x"}'}])
    path = write_chats(tmp_path / "a.jsonl", [record])
    asked = PromptSettings((PromptSource(path),), samples=1, max_tokens=400, pack=False)
    found = load_calibration(asked, with_template(tokenizer, source))
    text = tokenizer.decode(found.sequences[0], skip_special_tokens=False)
    assert (text, found.warnings) == ('T:look_up xC:{"what": "x"}', ())


def test_all_faults_of_all_files_are_reported_at_once(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A template's refusal among them: no model is needed to find it."""
    picky = with_template(
        tokenizer,
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{{ m.content }}{% endfor %}",
    )
    bad = tmp_path / "bad.jsonl"
    system = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    bad.write_text(f"{json.dumps(system)}\n{{oops\n{json.dumps(chat('fine'))}\n{{}}\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"one\ntwo \xe9\n")
    (tmp_path / "data.csv").write_text("a,b")
    names = ["bad.jsonl", "empty.jsonl", "blank.txt", "latin.txt", "data.csv", "missing.txt"]
    with pytest.raises(PromptError) as caught:
        load_calibration(ask(tmp_path, *names), picky)
    places = [detail.removeprefix(f"{tmp_path}/") for detail in caught.value.details]
    assert [place.split(" ")[0] for place in places] == [
        "bad.jsonl:1:",
        "bad.jsonl:2:",
        "bad.jsonl:4:",
        "empty.jsonl:",
        "blank.txt:",
        "latin.txt:2:",
        "data.csv:",
        "missing.txt:",
    ]
    assert "System role not supported" in places[0]
    assert "not valid JSON" in places[1]
    assert str(caught.value).endswith("(and 7 more)")


def test_chats_need_a_chat_template(folder: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="the model has no chat template"):
        load_calibration(ask(folder, "amber.jsonl"), replace(tokenizer, templates={}))


def test_chats_taken_for_tokens_are_refused(folder: Path, tokenizer: Tokenizer) -> None:
    asked = PromptSettings((PromptSource(folder / "amber.jsonl", kind="tokens"),))
    with pytest.raises(PromptError, match=r"amber.jsonl:1: not a list of token ids \(and 59 more\)"):
        load_calibration(asked, tokenizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": ()}, "no prompt files"),
        ({"samples": 0}, "samples is too small"),
        ({"max_tokens": 1}, "max_tokens is too small"),
        ({"sources": (PromptSource(Path("a"), share=0.0),)}, "share of a is wrong"),
        ({"sources": (PromptSource(Path("a"), share=float("nan")),)}, "share of a is wrong"),
    ],
)
def test_wrong_settings_are_refused(tokenizer: Tokenizer, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        load_calibration(replace(PromptSettings((PromptSource(Path("a")),)), **change), tokenizer)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shares=st.lists(st.floats(0.05, 5), min_size=3, max_size=3),
    samples=st.integers(1, 20),
    max_tokens=st.integers(2, 60),
    seed=st.integers(0, 3),
)
def test_any_mix_adds_up(
    folder: Path, tokenizer: Tokenizer, shares: list[float], samples: int, max_tokens: int, seed: int
) -> None:
    names = ("amber.jsonl", "basil.jsonl", "prose.txt")
    asked = ask(folder, *names, shares=shares, samples=samples, max_tokens=max_tokens, seed=seed)
    found = load_calibration(asked, tokenizer)
    assert [len(sequence) for sequence in found.sequences] == [max_tokens] * samples
    assert sum(source.tokens for source in found.sources) == found.tokens == samples * max_tokens
    assert sum(source.share for source in found.sources) == pytest.approx(1)
