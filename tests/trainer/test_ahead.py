"""The thread that makes batches ahead: order, room, errors, ends."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.ahead import Ahead, Waits


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(0, 40))
def test_all_come_in_order_and_never_more_than_there_is_room_for(size, steps):
    made: list[int] = []
    taken = 0
    furthest = 0

    def make(step):
        nonlocal furthest
        furthest = max(furthest, len(made) - taken)
        made.append(step)
        return step

    ahead = Ahead(make, range(steps), size, Waits())
    for step in ahead:
        assert step == taken
        taken += 1
    ahead.close()
    assert made == list(range(steps))
    assert taken == steps
    assert furthest <= size + 1  # those that are ready, one in hand, and one that was just taken


def test_one_who_waits_for_the_maker_gets_each_as_it_is_made():
    gates = [threading.Event() for _ in range(5)]
    waits = Waits()

    def make(step):
        gates[step].wait()
        return step

    ahead = iter(Ahead(make, range(5), 4, waits))
    for step, gate in enumerate(gates):
        gate.set()
        assert next(ahead) == step
    assert next(ahead, None) is None


def test_an_error_comes_at_its_place_and_ends_the_thread():
    def make(step):
        if step == 3:
            raise ValueError("step 3")
        return step

    ahead = Ahead(make, range(9), 2, Waits())
    steps = iter(ahead)
    assert [next(steps) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="step 3"):
        next(steps)
    ahead.close()
    assert not ahead._thread.is_alive()


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_ends_a_thread_that_waits_for_room(taken):
    full = threading.Event()

    def make(step):
        if step == taken + 2:
            full.set()  # two are ready, this one is in hand
        return step

    ahead = Ahead(make, range(100), 2, Waits())
    one = iter(ahead)
    assert [next(one) for _ in range(taken)] == list(range(taken))
    full.wait()
    ahead.close()
    assert not ahead._thread.is_alive()
    assert next(one, None) is None
