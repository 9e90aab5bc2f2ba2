"""Whether an environment is in the same state as before."""

import random
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest

from coulda.environments.remembered import Memory, contents


@dataclass
class Shelf:
    goods: dict[str, int] = field(default_factory=dict)
    queue: deque[float] = field(default_factory=deque)
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    itself: Any = None


class Slotted:
    __slots__ = ("left",)

    def __init__(self, left):
        self.left = left


def shelf(**other) -> Shelf:
    made = Shelf({"a": 1, "b": 2}, deque([0.5, float("nan")]))
    made.itself = [made]
    for name, value in other.items():
        setattr(made, name, value)
    return made


def test_the_same_is_the_same_and_hashable():
    assert contents(shelf()) == contents(shelf())
    assert hash(contents(shelf())) == hash(contents(shelf()))
    row = np.arange(3.0)
    assert contents([row, row]) == contents([row, row.copy()]), "whether two parts are one object makes no difference"
    assert contents({1, 2, 3}) == contents({3, 2, 1})
    assert contents(Slotted(2)) == contents(Slotted(2))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (shelf(), shelf(goods={"a": 1, "b": 3})),
        (shelf(), shelf(queue=deque([0.5, 0.5]))),
        (shelf(), shelf(dice=random.Random(1))),
        (Slotted(1), Slotted(2)),
        (np.zeros(2), np.array([0.0, 1e-300])),
        (np.zeros(2), np.zeros(2, np.float32)),
        (0.0, -0.0),
        (1, True),
        ([1, 2], (1, 2)),
        (len, max),
    ],
)
def test_what_differs_differs(a, b):
    assert contents(a) != contents(b)


class Counter(gymnasium.Env):
    def __init__(self):
        self.count, self.table, self.action_space = 0, {0: [(1.0, 2)]}, gymnasium.spaces.Discrete(2)


def test_an_environment_s_state_is_all_but_its_generators_and_what_cannot_be_told_is_not():
    env = gymnasium.wrappers.TimeLimit(Counter(), 5)
    inner, memory = env.unwrapped, Memory(env)
    inner.reset(seed=0)
    before = memory.now()
    inner.np_random.random()
    inner.action_space.sample()
    assert memory.now() == before is not None
    inner.count = 1
    assert memory.now() != before
    inner.count, inner.table[0][0] = 0, (1.0, 3)
    assert memory.now() != before
    inner.table[0][0] = (1.0, np.arange(2))
    assert memory.now() == memory.now() != before
    inner.table[0][0] = (1.0, 2)
    assert memory.now() == before
    inner.lock = threading.Lock()
    assert memory.now() is None
