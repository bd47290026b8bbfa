"""Multiple choice: what is asked, and which answer counts."""

from __future__ import annotations

from typing import Any

from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.pipeline.validate.tasks.model import Continuation
from tests.pipeline.validate.tasks.fake_model import FakeModel

ROW: dict[str, Any] = {"id": "a", "question": "Water is", "choices": ["wet", "made of stone"], "answer": 1}


def _asked(task: str, row: dict[str, Any]) -> list[tuple[str, str]]:
    seen: list[Continuation] = []

    def note(continuation: Continuation) -> float:
        seen.append(continuation)
        return 0.0

    TASKS[task].measure(FakeModel(note), [row])
    return [(continuation.context, continuation.text) for continuation in seen]


def test_acc_takes_the_likeliest_choice_and_acc_norm_the_likeliest_a_character() -> None:
    logprobs = {" wet": -6.0, " made of stone": -13.0}
    (measured,) = TASKS["arc_easy"].measure(FakeModel(lambda each: logprobs[each.text]), [ROW])
    assert measured.values == {"acc": 0.0, "acc_norm": 1.0}
    assert measured.answer == "made of stone"


def test_of_equals_the_first_is_chosen() -> None:
    (measured,) = TASKS["openbookqa"].measure(FakeModel(), [{**ROW, "answer": 0}])
    assert measured.values["acc"] == 1.0


def test_arc_is_asked_as_a_question() -> None:
    assert _asked("arc_easy", ROW) == [
        ("Question: Water is\nAnswer:", " wet"),
        ("Question: Water is\nAnswer:", " made of stone"),
    ]


def test_winogrande_asks_for_the_rest_of_the_sentence() -> None:
    row = {"id": "a", "question": "Ann told Bob that _ was late.", "choices": ["Ann", "Bob"], "answer": 0}
    assert _asked("winogrande", row) == [
        ("Ann told Bob that Ann", " was late."),
        ("Ann told Bob that Bob", " was late."),
    ]


def test_chinese_choices_follow_without_a_space() -> None:
    row = {"id": "a", "question": "我掏空了口袋，所以", "choices": ["找到了票根。", "睡着了。"], "answer": 0}
    assert _asked("xcopa_zh", row)[0] == ("我掏空了口袋，所以", "找到了票根。")


def test_an_exam_is_answered_with_a_letter() -> None:
    context, text = _asked("gaokao_zh", ROW)[1]
    assert context.startswith("问题：Water is 选项：(A)wet (B)made of stone\n答案：从A到B")
    assert text == "B"


def test_braces_in_a_question_stay_as_they_are() -> None:
    assert _asked("hellaswag", {**ROW, "question": "{question} {0}"})[0][0] == "{question} {0}"
