"""Whether work stands still, told by time."""

from __future__ import annotations

from gristmill.runtime.liveness import Liveness, Stall


def test_work_that_says_nothing_for_too_long_stands_still() -> None:
    liveness = Liveness(30.0, now=0.0)
    liveness.work_began(100.0)
    assert liveness.stall(129.0) is None
    assert liveness.stall(131.0) == Stall(31.0, 30.0)


def test_a_step_with_something_to_show_ends_a_standstill() -> None:
    liveness = Liveness(30.0, now=0.0)
    liveness.stepped(0.0, 40.0, progressed=True)
    assert liveness.stall(60.0) is None


def test_steps_that_show_nothing_are_no_progress() -> None:
    liveness = Liveness(30.0, now=0.0)
    for second in range(40):
        liveness.stepped(second, second + 0.5, progressed=False)
    assert liveness.stall(40.0) == Stall(40.0, 30.0)


def test_a_machine_whose_steps_take_long_is_given_more_time() -> None:
    liveness = Liveness(1.0, now=0.0)
    liveness.stepped(0.0, 10.0, progressed=True)
    assert liveness.stall(45.0) is None
    assert liveness.stall(51.0) == Stall(41.0, 40.0)


def test_one_long_step_is_forgotten_after_many_short_ones() -> None:
    liveness = Liveness(1.0, now=0.0)
    liveness.stepped(0.0, 10.0, progressed=True)
    for index in range(600):
        liveness.stepped(10.0 + index / 100, 10.005 + index / 100, progressed=True)
    assert liveness.stall(18.0) is not None
