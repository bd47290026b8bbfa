"""LLM over the real reference executor, beside transformers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gristmill.runtime.engine_folder import EngineFolder, GoldenPrompt
from gristmill.runtime.errors import InputError, IntegrityError, OutsideError, RequestError, UnsupportedError
from gristmill.runtime.llm import LLM, load_engine
from gristmill.runtime.memory import FreeMemory
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.settings import EngineSettings

EXACT = EngineSettings(compute="float32", max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = "A much longer prompt that is computed in several chunks: " + "one two three " * 8
PROMPTS = ["The mill", LONG, "x", "Grist"]


@pytest.fixture(scope="module")
def folder(tiny_llama: Path) -> EngineFolder:
    return EngineFolder("tiny", "reference", tiny_llama, tiny_llama)


@pytest.fixture(scope="module")
def llm(folder: EngineFolder) -> Iterator[LLM]:
    with LLM(load_engine(folder, EXACT)) as llm:
        yield llm


def test_greedy_answers_equal_those_of_transformers(llm: LLM, tiny_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    for output in llm.generate(PROMPTS, GREEDY):
        ids = torch.tensor([output.prompt_token_ids])
        expected = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)[
            0, ids.shape[1] :
        ]
        assert list(output.outputs[0].token_ids) == expected.tolist()


def test_answers_come_in_the_order_of_their_prompts(llm: LLM) -> None:
    assert [output.prompt for output in llm.generate(PROMPTS, GREEDY)] == PROMPTS


def test_answers_come_one_by_one_as_soon_as_they_are_whole(folder: EngineFolder) -> None:
    with LLM(load_engine(folder, replace(EXACT, max_num_seqs=1))) as llm:
        answers = llm.generate_each(PROMPTS, GREEDY)
        first = next(answers)
        assert llm._engine.stats().num_waiting == len(PROMPTS) - 1
        each = [first, *answers]
        assert [output.outputs for output in each] == [
            output.outputs for output in llm.generate(PROMPTS, GREEDY)
        ]


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    for output in llm.generate(PROMPTS, GREEDY):
        completion = output.outputs[0]
        assert completion.text == llm.tokenizer.decode(completion.token_ids, skip_special_tokens=True)


def test_token_ids_and_text_give_the_same_answer(llm: LLM) -> None:
    ids = llm.tokenizer.encode("The mill", add_special_tokens=True)
    by_text, by_ids = llm.generate("The mill", GREEDY), llm.generate([ids], GREEDY)
    assert by_text[0].outputs == by_ids[0].outputs


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    lengths = [replace(GREEDY, max_tokens=n) for n in (3, 5)]
    outputs = llm.generate(["a", "b"], lengths)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5]


def test_any_number_of_prompts_may_be_given(folder: EngineFolder) -> None:
    with LLM(load_engine(folder, replace(EXACT, max_num_seqs=2, max_waiting=1))) as llm:
        outputs = llm.generate([f"prompt {index}" for index in range(12)], replace(GREEDY, max_tokens=2))
    assert [output.prompt for output in outputs] == [f"prompt {index}" for index in range(12)]


def test_a_chat_is_rendered_by_the_models_template(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("Hello", "Bye")]
    one, several = llm.chat(chats[0], GREEDY), llm.chat(chats, GREEDY)
    assert one[0].outputs == several[0].outputs
    assert several[1].prompt is not None
    assert several[1].prompt.endswith("<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n")


def test_a_streamed_chat_equals_the_whole_answer(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    pieces = [delta.text for delta in llm.stream_chat(chat, GREEDY)]
    assert len(pieces) == 12
    assert "".join(pieces) == llm.chat(chat, GREEDY)[0].outputs[0].text


def test_a_stream_that_is_left_does_not_disturb_the_next_call(llm: LLM) -> None:
    stream = llm.stream_chat([{"role": "user", "content": "Hello"}], GREEDY)
    next(stream)
    assert len(llm.generate(PROMPTS, GREEDY)) == len(PROMPTS)
    assert list(stream) == []


def test_parameters_for_another_number_of_prompts_are_refused(llm: LLM) -> None:
    with pytest.raises(InputError, match="expected one, or 3"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


def test_a_closed_model_says_so(folder: EngineFolder) -> None:
    llm = LLM(load_engine(folder, EXACT))
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="closed"):
        llm.generate("x", GREEDY)


def test_a_bad_prompt_is_refused_before_any_work(llm: LLM) -> None:
    with pytest.raises(RequestError, match="context of 128"):
        llm.generate(["good", "x " * 500], GREEDY)
    assert len(llm.generate("good", GREEDY)) == 1


def test_golden_logits_that_differ_stop_the_load(folder: EngineFolder) -> None:
    wrong = GoldenPrompt((1, 2, 3), np.zeros((1, 49152), np.float32), ())
    with pytest.raises(IntegrityError, match="golden logits"):
        load_engine(replace(folder, golden=(wrong,)), EXACT)


def test_loading_reports_the_plan_and_what_runs(folder: EngineFolder) -> None:
    lines: list[str] = []
    load_engine(folder, EXACT, report=lines.append).close()
    assert [line.split("  ")[0] for line in lines[:5]] == [
        "memory",
        "weights",
        "work space",
        "KV cache",
        "left",
    ]
    assert "tiny: executor reference, compute float32" in lines[5]


def test_too_little_memory_is_said_before_loading(folder: EngineFolder) -> None:
    with pytest.raises(OutsideError, match="does not fit into memory"):
        load_engine(folder, EXACT, free=FreeMemory(1 << 20, "for the test"))


def test_an_unknown_target_is_refused_by_name(folder: EngineFolder) -> None:
    with pytest.raises(UnsupportedError, match="target 'abacus'; expected native-x86 or reference"):
        load_engine(replace(folder, target="abacus"))


def test_without_torch_the_error_says_what_to_install(tiny_llama: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from gristmill.runtime.engine_folder import EngineFolder\n"
        "from gristmill.runtime.llm import load_engine\n"
        f"folder = Path({str(tiny_llama)!r})\n"
        "load_engine(EngineFolder('tiny', 'reference', folder, folder))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert 'the reference engine needs torch; install it with: pip install "gristmill[build]"' in done.stderr
