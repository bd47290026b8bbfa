"""Tasks of a recipe: their names, their data and their gates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from gristmill.pipeline.validate.tasks.catalogue import TASKS
from gristmill.recipes import Recipe, load_recipe
from gristmill.recipes.gates import Gate
from gristmill.recipes.resolve import resolved_yaml
from gristmill.recipes.task_names import TaskName
from gristmill.runtime.errors import RecipeError

WriteRecipe = Callable[[str], Path]
TASK = "task: arc_easy, path: prompts/code.jsonl"


@pytest.fixture
def load(write_recipe: WriteRecipe, recipe_text: str) -> Callable[..., Recipe]:
    """The small recipe with a list of tasks, as text between brackets."""
    path = write_recipe(recipe_text)
    return lambda tasks: load_recipe(path, [f"validate.tasks=[{tasks}]"])


def test_every_task_can_be_named() -> None:
    assert set(get_args(TaskName)) == set(TASKS)


def test_a_gate_is_a_limit_on_the_difference_in_points(load: Callable[..., Recipe]) -> None:
    recipe = load(f'{{{TASK}, limit: 20, gate: "> -2%"}}')
    assert recipe.validation is not None
    (task,) = recipe.validation.tasks
    assert task.gate == Gate("tasks.arc_easy", ">", -0.02)
    assert task.limit == 20


def test_tasks_read_back_from_the_resolved_recipe_with_their_data_pinned(
    load: Callable[..., Recipe], write_recipe: WriteRecipe
) -> None:
    recipe = load(f'{{{TASK}, gate: "> -2%"}}')
    again = load_recipe(write_recipe(resolved_yaml(recipe).decode()))
    assert recipe.validation is not None
    assert again.validation is not None
    assert again.validation.tasks[0].gate == recipe.validation.tasks[0].gate
    assert again.validation.tasks[0].sha256 is not None


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        ("{task: arc_eazy, path: prompts/code.jsonl}", "did you mean arc_easy"),
        ("{task: arc_easy}", "tasks.0.path"),
        ("{task: arc_easy, path: prompts/codes.jsonl}", "did you mean code.jsonl"),
        (f"{{{TASK}, limit: 0}}", "tasks.0.limit"),
        (f'{{{TASK}, gate: "< 2%"}}', "expected > or >=, because higher is better"),
        (f'{{{TASK}, gate: "> -2"}}', "expected a limit above the lowest possible -1"),
        (f'{{{TASK}, gate: "> 100%"}}', "expected a limit that some result can keep"),
        (f"{{{TASK}}}, {{{TASK}}}", "found arc_easy twice; expected each task once"),
    ],
)
def test_tasks_that_cannot_be_meant_are_refused(load: Callable[..., Recipe], tasks: str, fault: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(tasks)
    assert fault in "\n".join((caught.value.line(), *caught.value.details))
