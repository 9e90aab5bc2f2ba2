"""Executors: what is given out depends on the requests alone, in this process and in others."""

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coulda.errors import CouldaError
from coulda.executors import Batch, InProcess, Stream, Work, WorkError, WorkSpec, gather
from coulda.executors.processes import Processes
from coulda.recipes.worlds import find_world
from coulda.search import PolicySearch
from tests.conftest import ROOT
from tests.programs import tiger_recipe

EPISODES = WorkSpec("tests.programs.tiger_recipe:episodes", {"seed": 3})
COUNTED = WorkSpec("tests.programs.recipes:counted", {"seed": 1})


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """Workers keep their compiled programs where the tests keep theirs."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), a, b)


def ask(executor, requests):
    """Batches of (seed of the policy, index) pairs, all in flight together."""
    for version, index in requests:
        executor.publish(version, tiger_recipe.policy(version))
        executor.request(index)
    return [executor.next() for _ in requests]


REQUESTS = [(0, 0), (0, 1), (1, 0), (2, 7), (2, 0), (0, 1)]


def test_a_batch_is_a_function_of_version_seed_and_index():
    with InProcess(EPISODES) as executor:
        batches = ask(executor, REQUESTS)
        assert [(batch.version, batch.index) for batch in batches] == REQUESTS
        work = tiger_recipe.episodes(seed=3)
        for batch in batches:
            key = jax.random.fold_in(jax.random.key(3), batch.index)
            assert_same_bits(batch.value, jax.jit(work.run)(tiger_recipe.policy(batch.version), key))
        assert_same_bits(batches[1].value, batches[5].value)
    # Twins: another version, another index and another seed are other episodes.
    with InProcess(WorkSpec(EPISODES.function, {"seed": 4})) as executor:
        other = ask(executor, [(0, 0)])[0]
    for twin in (batches[1], batches[2], other):
        assert not np.array_equal(twin.value.episode.log_prob, batches[0].value.episode.log_prob)


def test_requests_are_bounded():
    executor = InProcess(COUNTED, capacity=2)
    with pytest.raises(CouldaError, match="before any parameters; publish"):
        executor.request(0)
    with pytest.raises(CouldaError, match="no batch is in flight"):
        executor.next()
    executor.publish(0, jnp.float32(1))
    executor.request(0)
    executor.request(1)
    with pytest.raises(CouldaError, match="2 batches are in flight, which is the capacity"):
        executor.request(2)
    executor.next()
    executor.request(2)
    with pytest.raises(CouldaError, match="capacity is 0"):
        InProcess(COUNTED, capacity=0)


def test_gather_gives_every_batch_once_in_order_and_within_capacity():
    with InProcess(COUNTED, capacity=3) as executor:
        executor.publish(5, jnp.float32(2))
        most, products = 0, []
        for batch in gather(executor, range(3, 20)):
            most = max(most, executor.in_flight)
            products.append(float(batch.value["product"]))
    assert products == [2.0 * index for index in range(3, 20)]
    assert most < 3


def learn(executor, updates, staleness, width=1, start=0, behaviors=None):
    """A learner that adds the mean of its batches: its parameters, and (update, version, index) of each batch."""
    stream, seen = Stream(executor, staleness, width), []
    behaviors = [jnp.float32(1)] if behaviors is None else list(behaviors)
    for update in range(start, updates):
        batches = stream.next(update, behaviors)
        seen += [(update, batch.version, batch.index) for batch in batches]
        mean = sum(batch.value["noise"].mean() + 0.1 * batch.value["product"] for batch in batches) / width
        behaviors = [*behaviors, behaviors[-1] + mean][-staleness - 1 :]
    return behaviors, seen


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("width", [1, 2])
def test_batches_are_as_stale_as_stated(staleness, width):
    with InProcess(COUNTED) as executor:
        _, seen = learn(executor, 6, staleness, width)
    expected = [(v, max(v - staleness, 0), v * width + i) for v in range(6) for i in range(width)]
    assert seen == expected


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_learner_that_is_resumed_ends_where_it_would_have(staleness):
    whole, _ = learn(InProcess(COUNTED), 7, staleness)
    for stop in (1, 4):
        with InProcess(COUNTED) as executor:
            parts, _ = learn(executor, stop, staleness)
            parts, _ = learn(executor, 7, staleness, start=stop, behaviors=parts)
        assert_same_bits(parts, whole)
    # The twin: a learner that kept only its newest parameters makes other batches.
    if staleness:
        parts, _ = learn(InProcess(COUNTED), 4, staleness)
        forgot, _ = learn(InProcess(COUNTED), 7, staleness, start=4, behaviors=[parts[-1]] * 3)
        assert float(forgot[-1]) != float(whole[-1])


def test_streams_say_what_they_need():
    executor = InProcess(COUNTED, capacity=4)
    with pytest.raises(CouldaError, match="keep 6 batches in flight, but the executor's capacity is 4"):
        Stream(executor, staleness=2, width=2)
    with pytest.raises(CouldaError, match="staleness is -1"):
        Stream(executor, staleness=-1)
    with pytest.raises(CouldaError, match="1 behaviors are given, but update 5 needs the last 3"):
        Stream(executor, staleness=2).next(5, [jnp.float32(0)])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "names no object"),
        ("tests.programs.recipes:absent", "has no 'absent'"),
        ("tests.programs.recipes:not_work", "returned a int; it must return a Work"),
    ],
)
def test_recipes_are_checked(function, message):
    with pytest.raises(CouldaError, match=message):
        WorkSpec(function).build()


def test_work_may_be_given_without_a_recipe():
    executor = InProcess(Work(jnp.float32(0), lambda index: np.float32(index), lambda scale, x: scale + x))
    executor.publish(9, jnp.float32(0.5))
    executor.request(4)
    assert executor.next() == Batch(9, 4, jnp.float32(4.5))


def test_processes_return_the_bits_of_this_process():
    with InProcess(EPISODES) as executor:
        expected = ask(executor, REQUESTS)
    with Processes(EPISODES, num_workers=2) as executor:
        found = ask(executor, REQUESTS)
        pids = executor.pids
    assert [(batch.version, batch.index) for batch in found] == REQUESTS
    assert_same_bits([batch.value for batch in found], [batch.value for batch in expected])
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_that_dies_is_replaced_and_its_batch_is_the_same(tmp_path):
    spec = WorkSpec("tests.programs.recipes:dying", {"folder": str(tmp_path), "deaths": 1})
    with Processes(spec, num_workers=1, capacity=8) as executor:
        executor.publish(0, jnp.float32(2))
        assert [float(batch.value) for batch in gather(executor, range(5))] == [0, 2, 4, 6, 8]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_batch_that_kills_every_worker_is_given_up(tmp_path):
    spec = WorkSpec("tests.programs.recipes:dying", {"folder": str(tmp_path), "deaths": 100})
    with Processes(spec, num_workers=1, max_deaths=2) as executor:
        executor.publish(0, jnp.float32(2))
        executor.request(3)
        with pytest.raises(
            WorkError, match=r"batch 3 of version 0: its worker died 2 times, at last with exit code -9"
        ):
            executor.next()


def test_a_worker_that_hangs_is_given_up():
    with Processes(WorkSpec("tests.programs.recipes:hanging"), num_workers=1, timeout=0.5) as executor:
        executor.publish(0, jnp.float32(2))
        executor.request(1)
        with pytest.raises(WorkError, match=r"a worker did not answer in 0.5 seconds"):
            executor.next()


def test_what_goes_wrong_in_a_worker_is_told_and_the_worker_goes_on():
    with Processes(WorkSpec("tests.programs.recipes:failing"), num_workers=1) as executor:
        executor.publish(0, jnp.float32(2))
        for index in (2, 1):
            executor.request(index)
        with pytest.raises(WorkError, match=r"(?s)batch 2 of version 0 failed in a worker.*batch two is cursed"):
            executor.next()
        assert float(executor.next().value) == 2
        (pid,) = executor.pids
        assert pid != os.getpid()


@pytest.mark.slow
def test_a_search_whose_episodes_are_collected_elsewhere_is_the_same():
    world = find_world("bandit")
    search = PolicySearch(world.environment, world.model, world.hindsight, optax.sgd(0.1), num_episodes=6)
    work = WorkSpec("coulda.recipes.search:collect", {"places": {"world": "bandit"}, "episodes": 6, "batches": 2})

    def policy(search, updates=3):
        state = search.init(world.policy(jax.random.key(0)))
        for update in range(updates):
            state, _ = search.step(jax.random.fold_in(jax.random.key(5), update), state)
        return state

    with InProcess(work) as here, Processes(work, num_workers=1) as elsewhere:
        found = [policy(replace(search, executor=executor)) for executor in (None, here, elsewhere)]
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])
    with pytest.raises(CouldaError, match="6 episodes cannot be collected in 4 equal batches"):
        WorkSpec(work.function, {**work.settings, "batches": 4}).build()
