"""A build that is interrupted loses at most the layer in work, and ends in the same bytes."""

from __future__ import annotations

import json
import resource
import signal

import pytest


@pytest.fixture(scope="module")
def uninterrupted(built) -> str:
    """The digest of a build that nothing disturbed."""
    (row,) = built.json("list")
    return str(row["digest"])


@pytest.fixture
def recipe(tmp_path, write_recipe):
    """The same recipe as `uninterrupted`, in a place of its own."""
    return write_recipe(tmp_path / "recipe", compile=["awq", "native-x86"])


@pytest.mark.parametrize(
    "point",
    [
        "stages/quantize/*.partial/layer-00000.*",
        "stages/quantize/*.partial/layer-00002.*",
        "stages/checkpoint/*.partial",
        "stages/compile/*.partial",
    ],
    ids=["first layer", "last layer", "writing the checkpoint", "writing the engine"],
)
def test_a_killed_build_resumes_to_the_digest_of_an_uninterrupted_one(
    command, recipe, uninterrupted: str, point: str
) -> None:
    killed = command.stop_when(point, signal.SIGKILL, "build", recipe)
    assert killed.returncode == -signal.SIGKILL
    assert command.json("list") == []
    assert command.json("build", recipe)["digest"] == uninterrupted


def test_a_kill_during_gptq_of_the_last_layer_loses_only_that_layer(
    command, recipe, uninterrupted: str
) -> None:
    killed = command.stop_when("stages/quantize/*.partial/layer-00001.*", signal.SIGKILL, "build", recipe)
    assert killed.returncode == -signal.SIGKILL
    assert not any(command.store.glob("stages/quantize/*.partial/layer-00002.*"))
    again = command.run("build", recipe)
    assert "continuing behind layer 2 of 3" in again.stderr
    assert uninterrupted in again.stdout


def test_an_interrupt_says_that_nothing_is_lost_and_the_next_build_continues(
    command, recipe, uninterrupted: str
) -> None:
    stopped = command.stop_when("stages/quantize/*.partial/layer-00001.*", signal.SIGINT, "build", recipe)
    assert stopped.returncode == 130
    assert "interrupted" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    again = command.run("build", recipe)
    assert again.returncode == 0
    assert "continuing behind layer" in again.stderr
    assert uninterrupted in again.stdout


def test_a_full_disk_is_named_and_leaves_nothing_listed(command, recipe, uninterrupted: str) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))

    full = command.run("build", recipe, preexec_fn=limit_files)
    assert full.returncode == 3, full.stderr
    assert "can't write" in full.stderr
    assert command.json("list") == []
    assert command.json("build", recipe)["digest"] == uninterrupted


def test_a_second_build_of_the_same_recipe_is_refused_while_the_first_goes_on(command, recipe) -> None:
    first = command.start("build", recipe)
    while not any(command.store.glob("stages/quantize/*.partial/layer-00000.*")):
        assert first.poll() is None
    first.send_signal(signal.SIGSTOP)
    second = command.run("build", recipe)
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=240)
    assert first.returncode == 0, err
    assert second.returncode == 3, second.stderr
    error = next(line for line in second.stderr.splitlines() if line.startswith("error: "))
    assert str(first.pid) in error
    assert len(command.json("list")) == 1


def test_a_repeated_build_reuses_every_stage(built, recipe) -> None:
    before = built.json("list")
    assert built.run("build", recipe).returncode == 0
    assert built.json("list") == before
    (record,) = built.store.glob("records/*.json")
    assert json.loads(record.read_text())["stages"]
