"""The environment: an independent stepper, conservation laws, totality, the noise, and the fast path."""

import dataclasses
from itertools import product

import equinox as eqx
import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments.counter_hash import GAMMA, scramble
from coulda.environments.sokoban import Sokoban, SokobanBatch, UniformLevels, generate, read_levels, tiles
from coulda.environments.sokoban.boards import BoardGame, has_closed_border
from coulda.environments.sokoban.noise import TileNoise, tile_bits
from coulda.errors import CouldaError
from coulda.noise import Categorical, Point
from coulda.pomdp import GumbelMaxChoice, Policy, batched, rollout
from coulda.testing import check_pomdp
from tests.conftest import FIXTURES

HEIGHT, WIDTH = 5, 6
grids = hypothesis.extra.numpy.arrays(np.uint8, (HEIGHT, WIDTH), elements=st.integers(0, 6))
actions = st.integers(0, 4)


def model_for(levels, num_boxes=3, **parameters) -> Sokoban:
    _, height, width = levels.shape
    return Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(5),
        height=height,
        width=width,
        num_boxes=num_boxes,
        **parameters,
    )


SMALL = model_for(np.zeros((1, HEIGHT, WIDTH), np.uint8), num_boxes=2)
initial, transition, reward, terminal = (
    eqx.filter_jit(f) for f in (SMALL.initial, SMALL.transition, SMALL.reward, SMALL.terminal)
)


def reference_step(grid: np.ndarray, action: int, num_boxes: int) -> tuple[np.ndarray, float]:
    """One step as played on paper: layers apart, one cell at a time. Shares no code with the library."""
    height, width = grid.shape
    wall, box, target = grid == 1, np.isin(grid, (2, 5)), np.isin(grid, (3, 5, 6))
    agents = np.argwhere(np.isin(grid, (4, 6)))
    before = int((box & target).sum())
    place = None
    if len(agents):
        row, column = agents[0]
        dr, dc = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))[action]

        def is_open(r, c):
            return 0 <= r < height and 0 <= c < width and not wall[r, c]

        place = (row, column)
        r1, c1, r2, c2 = row + dr, column + dc, row + 2 * dr, column + 2 * dc
        if action != 4 and before < num_boxes and is_open(r1, c1):
            if not box[r1, c1]:
                place = (r1, c1)
            elif is_open(r2, c2) and not box[r2, c2]:
                box[r1, c1], box[r2, c2] = False, True
                place = (r1, c1)
    after = int((box & target).sum())
    result = np.zeros_like(grid)
    for r, c in np.ndindex(grid.shape):
        if wall[r, c]:
            result[r, c] = 1
        elif box[r, c]:
            result[r, c] = 5 if target[r, c] else 2
        elif (r, c) == place:
            result[r, c] = 6 if target[r, c] else 4
        elif target[r, c]:
            result[r, c] = 3
    return result, after - before + (10.0 if after >= num_boxes > before else 0.0)


@hypothesis.given(grids, actions)
def test_agrees_with_the_reference_on_any_grid(grid, action):
    start = np.asarray(initial(grid))
    following = np.asarray(transition(start, action, ()))
    expected, expected_reward = reference_step(grid, action, 2)
    np.testing.assert_array_equal(following, expected)
    assert reward(start, action, following) == expected_reward
    assert bool(terminal(start)) == (not np.isin(grid, (4, 6)).any() or (grid == 5).sum() >= 2)


@hypothesis.given(grids, st.lists(actions, max_size=8))
def test_conservation(grid, sequence):
    """Walls and targets stay where they are; boxes and the agent are neither made nor lost."""
    state = start = np.asarray(initial(grid))
    for action in sequence:
        state = np.asarray(transition(state, action, ()))
    np.testing.assert_array_equal(state == tiles.WALL, start == tiles.WALL)
    np.testing.assert_array_equal(tiles.has_target(state), tiles.has_target(start))
    assert tiles.has_box(state).sum() == tiles.has_box(start).sum()
    assert tiles.has_agent(state).sum() == tiles.has_agent(start).sum() <= 1
    assert state.dtype == np.uint8
    assert state.max() < tiles.NUM_TILES


@hypothesis.given(grids)
def test_noop_is_the_identity(grid):
    start = initial(grid)
    np.testing.assert_array_equal(transition(start, tiles.NOOP, ()), start)
    np.testing.assert_array_equal(initial(start), start)
    assert reward(start, tiles.NOOP, start) == 0


@hypothesis.given(grids, st.integers(0, 3))
def test_pulls_undo_pushes(grid, action):
    """A step can be taken back by stepping back, pulling the box if one was pushed."""
    start = np.asarray(initial(grid))
    state = np.asarray(transition(start, action, ()))
    hypothesis.assume((state != start).any())
    (row, column), (dr, dc) = np.argwhere(tiles.has_agent(state))[0], tiles.DISPLACEMENTS[action]
    target = tiles.has_target(state)
    box = tiles.has_box(state)
    if (tiles.has_box(start) != box).any():
        box[row + dr, column + dc], box[row, column] = False, True
    agent = np.zeros_like(box)
    agent[row - dr, column - dc] = True
    back = np.where(box, np.where(target, 5, 2), np.where(agent, np.where(target, 6, 4), np.where(target, 3, 0)))
    np.testing.assert_array_equal(np.where(state == tiles.WALL, tiles.WALL, back), start)


@hypothesis.given(grids)
def test_terminal_states_are_absorbing_and_pay_nothing(grid):
    start = initial(grid)
    hypothesis.assume(bool(terminal(start)))
    for action in range(5):
        following = transition(start, action, ())
        np.testing.assert_array_equal(following, start)
        assert reward(start, action, following) == 0


def walk(model, levels, length, seed):
    """States `[length + 1, n, ...]`, actions and rewards of random play, through the POMDP."""
    sequence = jax.random.randint(jax.random.key(seed), (length, len(levels)), 0, 5)

    def step(state, action):
        following = model.transition(state, action, ())
        return following, (following, model.reward(state, action, following))

    first = jax.vmap(model.initial)(jnp.asarray(levels))
    _, (states, rewards) = jax.jit(lambda s, a: jax.lax.scan(jax.vmap(step), s, a))(first, sequence)
    return np.concatenate([first[None], states]), np.asarray(sequence), np.asarray(rewards)


def check_against_reference(levels, num_boxes, length, seed):
    states, sequence, rewards = walk(model_for(levels, num_boxes), levels, length, seed)
    for t, i in product(range(length), range(len(levels))):
        expected, expected_reward = reference_step(states[t, i], sequence[t, i], num_boxes)
        np.testing.assert_array_equal(states[t + 1, i], expected)
        assert rewards[t, i] == expected_reward


def test_agrees_with_the_reference_on_generated_levels():
    check_against_reference(generate(jax.random.key(0), 100), 3, 30, seed=0)


def test_agrees_with_the_reference_on_real_levels():
    check_against_reference(read_levels(FIXTURES / "boxoban_unfiltered_test.txt")[:200], 4, 15, seed=1)


@pytest.mark.parametrize("border", [0, 1])
def test_boards_agree_with_the_pomdp(border):
    """On generated levels, and without a border to leave out on arbitrary grids with everything wrong with them."""
    levels = generate(jax.random.key(1), 300)
    if not border:
        levels = np.random.default_rng(0).choice(7, p=[0.5, 0.1, 0.15, 0.15, 0.03, 0.03, 0.04], size=(300, 7, 11))
    levels = levels.astype(np.uint8)
    assert has_closed_border(levels) == bool(border)
    states, sequence, rewards = walk(model_for(levels), levels, 60, seed=2)
    height, width = levels.shape[1] - 2 * border, levels.shape[2] - 2 * border
    game = BoardGame(height, width, num_boxes=3, border=border)

    def step(boards, action):
        boards, paid = game.step(boards, action)
        return boards, (game.unpack(boards), paid, game.over(boards))

    run = jax.jit(lambda boards, a: jax.lax.scan(jax.vmap(step), boards, a))
    _, (fast, fast_rewards, over) = run(jax.vmap(game.pack)(levels), sequence)
    np.testing.assert_array_equal(fast, states[1:])
    np.testing.assert_array_equal(fast_rewards, rewards)
    model = model_for(levels)
    np.testing.assert_array_equal(over, jax.vmap(jax.vmap(model.terminal))(states[1:]))
    assert (rewards != 0).any()


def test_a_batch_is_the_pomdp_on_its_own_scenarios():
    """Through automatic resets: every observation is that of the POMDP on the level and noise of `scenario_noise`."""
    corridor = np.pad(tiles.from_text("@$."), ((3, 3), (2, 2)), constant_values=tiles.WALL)  # often solved by chance
    levels = np.concatenate([generate(jax.random.key(2), 2, 7, 7, 1), corridor[None]])
    model = model_for(levels, num_boxes=1, horizon=12)
    batch = SokobanBatch.of(model)
    initial, transition, reward, terminal, observe, scenario_noise = (
        eqx.filter_jit(f)
        for f in (model.initial, model.transition, model.reward, model.terminal, model.observe, batch.scenario_noise)
    )
    seeds = jax.random.bits(jax.random.key(3), (8, 2), jnp.uint32)
    sequence = jax.random.randint(jax.random.key(4), (60, 8), 0, 5).astype(jnp.uint8)
    state, first = jax.vmap(batch.reset)(seeds)
    _, shown = jax.jit(lambda s, a: jax.lax.scan(jax.vmap(batch.step), s, a))(state, sequence)
    solved = 0
    for i in range(8):
        episode, t, timestep = 0, 0, 0
        index, noise_seed = scenario_noise((seeds[i, 0], seeds[i, 1]), jnp.uint32(0))
        s, seen = initial(levels[index]), first.observation[i]
        while True:
            noise = TileNoise(noise_seed, 7, 7)
            np.testing.assert_array_equal(seen.reshape(7, 7), observe(s, noise.at(jnp.int32(t))))
            if timestep == 60:
                break
            if t == 12 or bool(terminal(s)):
                episode, t = episode + 1, 0
                index, noise_seed = scenario_noise((seeds[i, 0], seeds[i, 1]), jnp.uint32(episode))
                s, paid = initial(levels[index]), 0.0
            else:
                following = transition(s, sequence[timestep, i], ())
                paid = reward(s, sequence[timestep, i], following)
                s, t = following, t + 1
            assert shown.reward[timestep, i] == paid
            assert bool(shown.terminated[timestep, i]) == bool(terminal(s))
            assert bool(shown.truncated[timestep, i]) == (t == 12 and not bool(terminal(s)))
            solved += bool(terminal(s))
            seen = shown.observation[timestep, i]
            timestep += 1
    assert solved > 0


def test_a_batch_plays_all_levels_equally():
    """Chi-squared over 50 levels, 20,000 first episodes; the bound fails once in a million keys.

    The twin: a pool that holds one level twice.
    """
    levels = generate(jax.random.key(2), 50, 7, 7, 1)
    batch = SokobanBatch.of(model_for(levels, num_boxes=1))
    seeds = jax.random.bits(jax.random.key(5), (20_000, 2), jnp.uint32)
    index = jax.vmap(lambda s: batch.scenario_noise((s[0], s[1]), jnp.uint32(0))[0])(seeds)

    def chi_squared(index):
        return ((np.bincount(index, minlength=50) - 400) ** 2 / 400).sum()

    assert chi_squared(np.asarray(index)) < 110
    assert chi_squared(np.where(index == 3, 4, index)) > 110


class Uniform(Policy):
    def __call__(self, carry, observation):
        return carry, Categorical(probabilities=jnp.full(5, 0.2))


@pytest.mark.slow
def test_pomdp_contract():
    levels = generate(jax.random.key(3), 40)
    model = model_for(levels, horizon=20)
    check_pomdp(model)
    keys = jax.random.split(jax.random.key(0), 16)
    scenarios = jax.vmap(model.scenario_prior.sample)(keys)
    play = jax.jit(lambda u: batched(lambda one: rollout(model, Uniform(), one), u))
    once, again = play(scenarios), play(scenarios)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), once, again))
    assert once.episode.observation.shape == (16, 21, 10, 10)
    np.testing.assert_array_equal(once.state[:, 0], scenarios.initial)
    other = dataclasses.replace(model, levels=Point(jnp.asarray(levels[0])))
    np.testing.assert_array_equal(other.scenario_prior.sample(keys[0]).initial, levels[0])


def test_malformed_levels_run_to_the_end():
    """No agent, several agents, solved at the start, nothing at all: defined, and worth nothing where it is over."""
    texts = ["#####\n# $.#\n#####", "#####\n#@*.#\n#####", "     \n     \n     ", "#####\n#@$.@\n#####"]
    levels = np.stack([tiles.from_text(text) for text in texts])
    model = model_for(levels, num_boxes=1, horizon=10)
    scenarios = jax.vmap(model.scenario_prior.sample)(jax.random.split(jax.random.key(0), 4))
    scenarios = dataclasses.replace(scenarios, initial=jnp.asarray(levels))
    result = jax.jit(jax.vmap(lambda u: rollout(model, Uniform(), u)))(scenarios)
    np.testing.assert_array_equal(result.episode.length[:3], 0)
    np.testing.assert_array_equal(result.episode_return[:3], 0)
    assert (tiles.has_agent(np.asarray(result.state[3])).sum((1, 2)) == 1).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window": 2}, "window must be 0"),
        ({"mask_probability": 1.5}, "mask_probability must lie"),
        ({"num_boxes": 0}, "at least 1"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(CouldaError, match=message):
        model_for(np.zeros((1, 5, 5), np.uint8), **parameters)


@pytest.mark.parametrize("window", [0, 1, 3, 5])
def test_the_window_is_never_masked(window):
    level = generate(jax.random.key(4), 1)
    model = model_for(level, window=window, mask_probability=1.0)
    state = model.initial(jnp.asarray(level[0]))
    seen = np.asarray(model.observe(state, model.observation_noise.sample(jax.random.key(0))))
    row, column = np.argwhere(tiles.has_agent(level[0]))[0]
    inside = np.zeros((10, 10), bool)
    reach = window // 2
    if window:
        inside[max(row - reach, 0) : row + reach + 1, max(column - reach, 0) : column + reach + 1] = True
    np.testing.assert_array_equal(seen, np.where(inside, level[0], tiles.EMPTY))
    unmasked = dataclasses.replace(model, mask_probability=0.0)
    np.testing.assert_array_equal(unmasked.observe(state, model.observation_noise.sample(jax.random.key(0))), state)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("mask_probability", [0.0, 0.3, 1.0])
def test_observation_log_prob_is_the_probability_of_the_kernel(window, mask_probability):
    """All observations of a 2×4 grid that can come about: probabilities by enumeration of which tiles are masked."""
    grid = tiles.from_text("#@$ \n#. *")
    model = model_for(grid[None], window=window, mask_probability=mask_probability)
    low, high = jnp.uint32(0), jnp.uint32(2**32 - 1)
    probability: dict[bytes, float] = {}
    for masked in product([True, False], repeat=8):
        u = jnp.where(jnp.asarray(masked).reshape(2, 4), low, high)
        if mask_probability in (0.0, 1.0) and any(m != bool(mask_probability) for m in masked):
            continue
        seen = np.asarray(model.observe(jnp.asarray(grid), u)).tobytes()
        weight = np.prod([mask_probability if m else 1 - mask_probability for m in masked])
        probability[seen] = probability.get(seen, 0.0) + float(weight)
    assert sum(probability.values()) == pytest.approx(1)
    for seen, expected in probability.items():
        observation = jnp.asarray(np.frombuffer(seen, np.uint8).reshape(2, 4))
        assert float(jnp.exp(model.observation_log_prob(observation, grid))) == pytest.approx(expected, rel=1e-5)
    impossible = grid.copy()
    impossible[1, 2] = tiles.BOX
    assert model.observation_log_prob(jnp.asarray(impossible), jnp.asarray(grid)) == -np.inf


def hash_statistics(bits_of, mask=0.9) -> float:
    """The largest |z| over tests that masked tiles are independent of each other across episodes, steps and tiles.

    `bits_of(episode, step, tiles)` for consecutive episode seeds, the hardest case.
    """
    masked = np.asarray(jax.vmap(lambda e: jax.vmap(lambda t: bits_of(e, t, 100))(jnp.arange(51)))(jnp.arange(400)))
    masked = (masked < np.uint32(mask * 2**32)).astype(np.float64)
    size, variance = masked.size, mask * (1 - mask)
    z = [(masked.mean() - mask) / np.sqrt(variance / size)]
    z += list((masked.mean((0, 1)) - mask) / np.sqrt(variance / size * 100))  # each tile
    z += list((masked.mean((0, 2)) - mask) / np.sqrt(variance / size * 51))  # each step
    z += list((masked.mean((1, 2)) - mask) / np.sqrt(variance / size * 400))  # each episode
    centered = masked - mask
    for axis, lag in product(range(3), (1, 2, 10)):
        a, b = (
            np.take(centered, range(lag, centered.shape[axis]), axis),
            np.take(centered, range(centered.shape[axis] - lag), axis),
        )
        z.append((a * b).sum() / (variance * np.sqrt(a.size)))
    counts = masked.sum(2)  # masked tiles of an observation: their spread is binomial
    z.append((counts.var() / (100 * variance) - 1) / np.sqrt(2 / counts.size))
    return float(np.abs(z).max())


def test_observation_noise_is_independent():
    """561 z-scores; 5.5 is exceeded by chance once in 50,000 keys.

    Twins: all episodes alike, and a counter that is not mixed.
    """
    good = lambda e, t, n: TileNoise(jnp.stack([e.astype(jnp.uint32), jnp.uint32(7)]), 10, 10).at(t).reshape(-1)
    assert hash_statistics(good) < 5.5
    assert hash_statistics(lambda e, t, n: good(jnp.int32(0) * e, t, n)) > 5.5
    counter = lambda e, t, n: (e * 5100 + t * 100 + jnp.arange(n)).astype(jnp.uint32) * GAMMA
    assert hash_statistics(counter) > 5.5


def test_every_input_bit_changes_every_output_bit():
    """Avalanche of the hash over 4096 inputs: each of 32×32 flip rates is one half within 6 standard errors.

    That fails by chance for two keys in a million. The twin is one round of the hash.
    """

    def worst(f):
        x = jax.random.bits(jax.random.key(0), (4096,), jnp.uint32)
        flipped = jax.vmap(lambda i: f(x ^ (jnp.uint32(1) << i)) ^ f(x))(jnp.arange(32, dtype=jnp.uint32))
        bits = (np.asarray(flipped)[..., None] >> np.arange(32, dtype=np.uint32)) & 1
        return abs(bits.mean(1) - 0.5).max() / (0.5 / np.sqrt(4096))

    assert worst(lambda x: scramble(x, jnp.uint32(12345))) < 6
    assert worst(lambda x: (x ^ (x >> 16)) * np.uint32(0x21F0AAAD)) > 6


def test_noise_is_a_value():
    noise = TileNoise(jnp.array([3, 4], jnp.uint32), 10, 10)
    np.testing.assert_array_equal(noise.at(5), noise.at(jnp.int32(5)))
    assert (noise.at(5) != noise.at(6)).mean() > 0.99
    low, high = jnp.uint32(1), jnp.uint32(2)
    np.testing.assert_array_equal(tile_bits(low, high, 100)[:64], tile_bits(low, high, 64))


def test_a_batch_needs_a_pool():
    model = model_for(generate(jax.random.key(0), 1))
    with pytest.raises(CouldaError, match="resets from a pool of levels, but the environment's are Point"):
        SokobanBatch.of(dataclasses.replace(model, levels=Point(jnp.zeros((10, 10), jnp.uint8))))
