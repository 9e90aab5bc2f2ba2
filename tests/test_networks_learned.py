"""The recurrent policy and the scenario model: what they may see, and what their parts must equal."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coulda.environments.sokoban import Sokoban, UniformLevels, generate
from coulda.hindsight.conv_draw import ConvDRAW, Gaussian
from coulda.hindsight.learned import LearnedOnline, negative_elbo
from coulda.policies.conv_lstm import ConvLSTMPolicy, paper_policy
from coulda.pomdp import Episode, GumbelMaxChoice
from coulda.search import PolicySearch

HEIGHT, WIDTH, STEPS = 5, 6, 4


def episode(seed: int) -> Episode:
    keys = jax.random.split(jax.random.key(seed), 3)
    tiles = jax.random.randint(keys[0], (STEPS + 1, HEIGHT, WIDTH), 0, 7).astype(jnp.uint8)
    action = jax.random.randint(keys[1], (STEPS,), 0, 5)
    return Episode(tiles, action, jax.random.normal(keys[2], (STEPS,)), jnp.ones(STEPS, bool), jnp.zeros(STEPS))


def make(shared: bool) -> ConvDRAW:
    return eqx.filter_jit(ConvDRAW)(jax.random.key(0), num_layers=2, channels=4, latents=2, shared=shared)


@eqx.filter_jit
def drawn(network: ConvDRAW, height: int, width: int, keys):
    return jax.vmap(network.noise(height, width).sample)(keys)


make_policy = eqx.filter_jit(ConvLSTMPolicy)


@pytest.fixture(scope="module")
def network() -> ConvDRAW:
    return make(shared=False)


@pytest.fixture(scope="module")
def noise(network):
    return network.noise(HEIGHT, WIDTH).sample(jax.random.key(1))


read = eqx.filter_jit(lambda network, episode, length: network.read(episode, jnp.int32(length)))


def follow(first: Episode, second: Episode, length: int) -> Episode:
    """h_t of the first, and what comes after from the second: o_1 … o_t, and a, r up to t - 1."""
    join = lambda known: lambda a, b: jnp.asarray(np.concatenate([np.asarray(a)[:known], np.asarray(b)[known:]]))
    return Episode(
        join(length)(first.observation, second.observation),
        join(max(length - 1, 0))(first.action, second.action),
        join(max(length - 1, 0))(first.reward, second.reward),
        first.live,
        first.log_prob,
    )


@pytest.mark.parametrize("length", range(STEPS + 2))
def test_nothing_past_the_history_is_read_and_all_of_it_is(network, length):
    first, second = episode(0), episode(1)
    summary = read(network, first, length)
    np.testing.assert_array_equal(summary, read(network, follow(first, second, length), length))
    if length:
        shorter = follow(first, second, length - 1)
        assert not np.array_equal(summary, read(network, shorter, length)), "the last known step has no effect"
    else:
        assert not summary.any()


def test_an_unconditional_sample_does_not_depend_on_the_history(network, noise):
    sample = eqx.filter_jit(network.sample)
    levels = [sample(episode(seed), jnp.int32(0), noise) for seed in (0, 1)]
    np.testing.assert_array_equal(*levels)
    assert levels[0].shape == (HEIGHT, WIDTH)
    assert (levels[0][0] == 1).all()
    assert (levels[0][:, -1] == 1).all()


def test_elbo_is_the_likelihood_less_the_divergence(network, noise):
    """From the pass's own parts, tile by tile."""
    u, history = episode(2).observation[0], episode(0)
    elbo, drawn = eqx.filter_jit(network.elbo)(network.certain(u), history, jnp.int32(3), noise)
    log_probs = jax.nn.log_softmax(drawn.logits)
    log_probs, inner = np.asarray(log_probs), np.asarray(u)[1:-1, 1:-1]
    likelihood = sum(log_probs[row, column, tile] for (row, column), tile in np.ndenumerate(inner))
    np.testing.assert_allclose(elbo, likelihood - drawn.divergence, rtol=1e-5)
    assert drawn.divergence > 0


def test_divergence_is_the_mean_log_ratio():
    """Quadrature of a Gaussian's expectation, exact for the quadratic log-ratio, against the closed form."""
    q, p = Gaussian(jnp.float32(0.3), jnp.float32(-0.5)), Gaussian(jnp.float32(-1.0), jnp.float32(0.4))
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    log_density = lambda g, x: -0.5 * ((x - g.mean) / jnp.exp(g.log_scale)) ** 2 - g.log_scale
    x = q.at(jnp.asarray(nodes, jnp.float32))
    ratio = np.asarray(log_density(q, x) - log_density(p, x))
    np.testing.assert_allclose(q.divergence(p), (weights * ratio).sum() / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(q.divergence(q), 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_of_the_loss_is_its_slope(shared):
    network = make(shared)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), episode(0), episode(1))
    draws = drawn(network, HEIGHT, WIDTH, jax.random.split(jax.random.key(2), 2))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(network, direction, size):
        moved = jax.tree.map(lambda w, g: w + size * g, network, direction)
        return negative_elbo(moved, moved.certain(batch.observation[:, 0]), batch, jnp.array([1, STEPS + 1]), draws)[0]

    _, gradient = loss(network, network, 0.0)
    length = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    move = lambda size: loss(network, gradient, size / length)[0]
    # Central difference along the gradient: error of order size² and of rounding / size, both about 1e-3 here.
    np.testing.assert_allclose((move(0.01) - move(-0.01)) / 0.02, length, rtol=1e-2)


def test_the_policy_remembers_and_does_not_see_the_border():
    policy = make_policy(jax.random.key(0), HEIGHT, WIDTH, layers=2, channels=4, ticks=2, units=8)
    act = eqx.filter_jit(lambda carry, observation: policy.with_value(carry, observation))
    grids = episode(0).observation
    carry, first, value = act(policy.initial_carry(), grids[0])
    assert first.logits.shape == (5,)
    assert value.shape == ()
    border = grids[0].at[0].set(3).at[:, -1].set(3)
    np.testing.assert_array_equal(act(policy.initial_carry(), border)[1].logits, first.logits)
    assert not np.array_equal(act(carry, grids[0])[1].logits, first.logits)


def test_a_policy_that_focuses_sees_the_agents_cell_and_the_mean_of_all():
    agent = (4, 6)
    policy = make_policy(jax.random.key(0), HEIGHT, WIDTH, channels=4, units=8, focus=agent)
    grid = jnp.zeros((HEIGHT, WIDTH), jnp.uint8).at[2, 3].set(6).at[1, 1].set(3)
    carry, distribution, value = eqx.filter_jit(policy.with_value)(policy.initial_carry(), grid)
    top = np.asarray(carry[-1][1])
    seen = np.concatenate([top[1, 2], top.mean((0, 1))])
    outputs = policy.heads(jax.nn.relu(policy.hidden(jnp.asarray(seen))))
    np.testing.assert_allclose(np.append(distribution.logits, value), outputs, atol=1e-6)
    other = np.concatenate([top[2, 1], top.mean((0, 1))])  # the twin: another cell
    assert not np.allclose(policy.heads(jax.nn.relu(policy.hidden(jnp.asarray(other)))), outputs, atol=1e-6)
    sized = lambda side: eqx.filter_eval_shape(
        lambda key: ConvLSTMPolicy(key, side, side, focus=agent), jax.random.key(0)
    )
    assert sized(6).hidden.weight.shape == sized(9).hidden.weight.shape


def test_the_paper_policy_has_its_sizes():
    shapes = eqx.filter_eval_shape(paper_policy, jax.random.key(0))
    assert [layer.kernel.shape for layer in shapes.memory.layers] == [(3, 3, 39, 128)] + [(3, 3, 64, 128)] * 2
    assert shapes.memory.ticks == 2


@pytest.mark.slow
def test_a_source_learns_online_from_what_search_logs():
    levels = generate(jax.random.key(0), 4, 6, 6, 1)
    world = Sokoban(UniformLevels(levels), GumbelMaxChoice(5), 6, 6, 1, 2)
    network = eqx.filter_jit(ConvDRAW)(jax.random.key(0), num_layers=1, channels=4, latents=2)
    source = LearnedOnline(world, network, optax.adam(3e-2))
    policy = make_policy(jax.random.key(1), 6, 6, channels=4, units=4)
    search = PolicySearch(world, world, source, optax.sgd(1e-3), num_episodes=8, learn=LearnedOnline.learn)
    state = search.init(policy)
    pairs = search.collect(jax.random.key(2), state)
    lengths = jnp.full(8, 3, jnp.int32)
    noise = drawn(network, 6, 6, jax.random.split(jax.random.key(3), 8))
    loss = eqx.filter_jit(
        lambda network: negative_elbo(network, network.certain(pairs[0].initial), pairs[1], lengths, noise)[0]
    )
    before = loss(network)
    for key in jax.random.split(jax.random.key(4), 10):
        state, _ = search.step(key, state)
    assert loss(state.source.network) < 0.8 * before  # four levels: half a bit a tile is learned at once
    assert not eqx.tree_equal(state.source.network, network)
