"""The `.pomdp` format: every form of every statement, and errors that name the line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import CassandraError, parse_cassandra, read_cassandra, tiger
from coulda.policies import UniformPolicy
from coulda.pomdp import rollout

TIGER = """
# The tiger problem, as on pomdp.org
discount: 0.95
values: reward
states: tiger-left tiger-right
actions: listen open-left open-right
observations: tiger-left tiger-right

T:listen
identity
T:open-left
uniform
T:open-right
uniform

O:listen
0.85 0.15
0.15 0.85
O:open-left
uniform
O:open-right
uniform

R:listen : * : * : * -1
R:open-left : tiger-left : * : * -100
R:open-left : tiger-right : * : * 10
R:open-right : tiger-left : * : * 10
R:open-right : tiger-right : * : * -100
"""

PREAMBLE = "discount: 0.9\nvalues: reward\nstates: a b c\nactions: 2\nobservations: x y\n"
TABLES = "T: * identity\nO: * uniform\n"


def test_tiger_file_is_the_tiger(tmp_path):
    (tmp_path / "tiger.pomdp").write_text(TIGER)
    file = read_cassandra(tmp_path / "tiger.pomdp")
    assert (file.discount, file.actions) == (0.95, ("listen", "open-left", "open-right"))
    for kind in ("gumbel_max", "inverse_cdf"):
        ours = tiger(horizon=5, reparameterization=kind)
        theirs = file.model(horizon=5, reparameterization=kind)
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert jnp.array_equal(a, b)


def test_later_lines_overrule_and_wildcards_reach_everywhere():
    file = parse_cassandra(
        PREAMBLE
        + TABLES
        + "T: 0 : a\n0.2 0.3 0.5\nT: 0 : b : * 0.0\nT: 0 : b : c 1.0\nO: 1 : c : x 0.25\nO: 1 : c : y 0.75\n"
        + "R: * : * : * : * 1\nR: 1 : b : * : * 2.5e1\nR: 1 : b : c : * -3\n"
    )
    assert file.transition[0].tolist() == [[0.2, 0.3, 0.5], [0, 0, 1], [0, 0, 1]]
    assert np.array_equal(file.transition[1], np.eye(3))
    assert file.observation is not None
    assert file.observation[1, 2].tolist() == [0.25, 0.75]
    assert file.reward.shape == (2, 3, 3)
    assert file.reward[1].tolist() == [[1, 1, 1], [25, 25, -3], [1, 1, 1]]


def test_matrices_of_rewards_over_observations():
    file = parse_cassandra(PREAMBLE + TABLES + "R: 0 : a : b\n1 2\nR: 1 : c\n1 2\n3 4\n5 6\nR: 1 : c : a : y 9\n")
    assert file.reward.shape == (2, 3, 3, 2)
    assert file.reward[0, 0, 1].tolist() == [1, 2]
    assert file.reward[1, 2].tolist() == [[1, 9], [3, 4], [5, 6]]


def test_costs_are_negative_rewards():
    text = (PREAMBLE + TABLES + "R: 0 : a : * : * 4\n").replace("values: reward", "values: cost")
    assert parse_cassandra(text).reward[0, 0].tolist() == [-4, -4, -4]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("", [1 / 3, 1 / 3, 1 / 3]),
        ("start: uniform", [1 / 3, 1 / 3, 1 / 3]),
        ("start: 0.5 0.0 0.5", [0.5, 0, 0.5]),
        ("start: b", [0, 1, 0]),
        ("start: 2", [0, 0, 1]),
        ("start include: a c", [0.5, 0, 0.5]),
        ("start include: a 1", [0.5, 0.5, 0]),
        ("start exclude: b", [0.5, 0, 0.5]),
    ],
)
def test_start_forms(start, expected):
    assert parse_cassandra(f"{PREAMBLE}{start}\n{TABLES}").start.tolist() == expected


def test_reset_goes_back_to_the_start():
    file = parse_cassandra(PREAMBLE + "start: 0.5 0.0 0.5\n" + TABLES + "T: 1 : a reset\n")
    assert file.transition[1].tolist() == [[0.5, 0, 0.5], [0, 1, 0], [0, 0, 1]]


def test_a_file_without_observations_is_observed():
    text = "states: a b\nactions: 1\nT: 0\n0.0 1.0\n0.5 0.5\nR: 0 : a : b 2\nR: 0 : b\n3 4\n"
    file = parse_cassandra(text)
    assert file.observations is None
    assert file.reward.tolist() == [[[0, 2], [3, 4]]]
    model = file.model(horizon=3, reparameterization="inverse_cdf")
    trajectory = rollout(model, UniformPolicy(1), model.scenario_prior.sample(jax.random.key(0)))
    assert jnp.array_equal(trajectory.state.index, trajectory.episode.observation)


def test_rewards_of_observations_are_paid_for_the_observation_that_was_made():
    """The states become (s, o); then each reward must be the file's, of the o that was seen."""
    text = TIGER + "R: listen : * : * : tiger-right 7\n"
    file = parse_cassandra(text)
    model = file.model(horizon=8, reparameterization="gumbel_max")
    scenarios = jax.vmap(model.scenario_prior.sample)(jax.random.split(jax.random.key(0), 200))
    trajectories = jax.vmap(lambda u: rollout(model, UniformPolicy(3), u))(scenarios)
    episode, hidden = trajectories.episode, np.asarray(trajectories.state.index) // 2
    o = np.asarray(episode.observation)[:, 1:]
    expected = file.reward[np.asarray(episode.action), hidden[:, :-1], hidden[:, 1:], o]
    assert np.array_equal(episode.reward, expected)
    assert {-1.0, 7.0} <= set(np.unique(expected))
    assert (np.asarray(episode.observation)[:, 0] == 2).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file is empty"),
        ("hello: 3", r"line 1: 'hello' where one of"),
        ("discount: 0.9\nactions: 2\nT: * identity", "line 1: the file has no `states:`"),
        (PREAMBLE.replace("0.9", "1.9") + TABLES, "line 1: discount 1.9 is not between"),
        (PREAMBLE.replace("reward", "money") + TABLES, "line 2: `values: money`"),
        (PREAMBLE.replace("a b c", "a b a") + TABLES, "line 3: 'a' is named twice"),
        (PREAMBLE.replace("a b c", "a 2b") + TABLES, "line 3: '2b' is no name"),
        (PREAMBLE.replace("a b c", "0") + TABLES, "line 3: `states: 0`"),
        ("T: * identity\n" + PREAMBLE, "line 1: `T` comes before the preamble ends on line 6"),
        (PREAMBLE + TABLES + "T: 0 : d : a 1.0", r"line 8: 'd' is none of the 3 states \(a, b, c\)"),
        (PREAMBLE + TABLES + "T: 2 identity", "line 8: '2' is none of the 2 actions"),
        (PREAMBLE + TABLES + "T: 0 : a 0.5 0.5", "line 8: `T` needs 3 numbers here; this has 2"),
        (PREAMBLE + TABLES + "T: 0 : a 0.5 0.5 x", "line 8: 'x' is not a number"),
        (PREAMBLE + TABLES + "T: 0 : a 0.5 0.7 -0.2", "line 8: T holds probabilities"),
        (PREAMBLE + TABLES + "T: 0 : a\n0.5 0.2\n0.2", "line 8: T: 0 : a sums to 0.9, not 1"),
        (PREAMBLE + "T: 0 identity\nO: * uniform", "line 7: T: 1 : a sums to 0, not 1; no line sets it"),
        (PREAMBLE + TABLES + "R: 0 5", "line 8: `R` needs at least an action and a state"),
        (PREAMBLE + TABLES + "R: 0 : a : b : x : y 5", "line 8: `R` takes up to 4"),
        (PREAMBLE + "start: 0.5 0.5 0.5\n" + TABLES, "line 6: the start probabilities"),
        (PREAMBLE + "start exclude: *\n" + TABLES, "line 6: `start exclude` leaves no state"),
        ("states: 2\nactions: 1\nT: 0 identity\nO: 0 uniform", "line 4: `O` in a file without"),
        (PREAMBLE + TABLES + "T: 0 a : a : b 1.0", "line 8: 'a' where a colon or nothing"),
    ],
)
def test_errors_name_the_line(text, message):
    with pytest.raises(CassandraError, match=message):
        parse_cassandra(text)
