"""PO-Sokoban's experiments from end to end at the smallest size: stages, tampering, disjoint levels, figures."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from coulda.cli.reproduce import Reproduce
from coulda.environments.sokoban import solve
from coulda.environments.sokoban.pool import read_pool
from coulda.errors import CouldaError
from coulda.executors import InProcess
from coulda.experiments import mismatch, policy_evaluation, policy_search
from coulda.experiments.pipeline import Pipeline, training_log
from coulda.experiments.reproduction import FIGURES, OWN_WORLDS, evaluation_preset, ingredients, search_preset
from coulda.hindsight.conv_draw import ConvDRAW, Gaussian, load_scenario_model, save_scenario_model
from coulda.hindsight.learned import Learned
from coulda.policies import ConvLSTMPolicy, load_policy, save_policy
from coulda.pomdp import rollout
from coulda.recipes.held_out import HeldOut
from coulda.recipes.imitation import PolicyRecipe, sharpened, train_policy
from coulda.recipes.impala import ImpalaRecipe, learn
from coulda.recipes.running import Running
from coulda.recipes.sokoban import (
    POOLS,
    SMALLEST_POLICY,
    SOKOBAN_WORLDS,
    check_disjoint,
    draw_levels,
    make_sokoban,
    pool_of,
    solvers,
)
from coulda.stages import Stages, read_result, work_folder
from coulda.storage import ArtifactError
from coulda.trainer.logs import LOG, held_out_curve, read_log

WORLD = SOKOBAN_WORLDS["7x7"]
SMOKE = ingredients("smoke")
STAGES = ("policy", "truth", "scenario-model", "log", "importance")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """A folder in which the evaluation was reproduced."""
    folder = tmp_path_factory.mktemp("smoke")
    reproduce("evaluation", folder)
    return folder


def reproduce(figure: str, folder: Path) -> dict:
    """A figure at the smallest size."""
    return FIGURES[figure].reproduce(folder, FIGURES[figure].preset(SMOKE, "smoke"), False)


# Levels.


def test_a_level_has_one_pool_whoever_draws_it():
    pools = {pool: draw_levels(jax.random.key(i), WORLD, pool, 300) for i, pool in enumerate(POOLS)}
    check_disjoint(pools)
    for pool, levels in pools.items():
        assert (pool_of(levels) == pool).all()


def test_pools_have_their_shares():
    everything = np.random.default_rng(0).integers(0, 7, (20_000, 7, 7)).astype(np.uint8)
    shares = {pool: (pool_of(everything) == pool).mean() for pool in POOLS}
    # 5 standard errors of a share of 20,000: false alarm in one of 4e5 runs for all four.
    for pool, share in POOLS.items():
        assert abs(shares[pool] - share) < 5 * np.sqrt(share * (1 - share) / 20_000)


def test_pools_that_share_a_level_are_refused():
    levels = draw_levels(jax.random.key(0), WORLD, "log", 20)
    with pytest.raises(CouldaError, match="'log' and 'truth' share a level"):
        check_disjoint({"log": levels, "truth": levels[:1]})


# Networks on disk.


def test_a_policy_comes_back_from_its_file(tmp_path):
    make_policy, make_model = eqx.filter_jit(ConvLSTMPolicy), eqx.filter_jit(ConvDRAW)
    policy = make_policy(jax.random.key(3), 6, 7, layers=2, channels=4, kernel=5, ticks=2, units=8)
    save_policy(tmp_path / "policy", policy)
    assert eqx.tree_equal(load_policy(tmp_path / "policy"), policy)
    network = make_model(jax.random.key(4), num_layers=2, channels=4, latents=3, shared=True)
    save_scenario_model(tmp_path / "model", network)
    assert eqx.tree_equal(load_scenario_model(tmp_path / "model"), network)
    with pytest.raises(ArtifactError, match="expected kind 'policy', found kind 'scenario-model'"):
        load_policy(tmp_path / "model")


# The solver as an expert.


@pytest.mark.slow
def test_the_solver_solves_what_it_plans_in():
    levels = draw_levels(jax.random.key(0), WORLD, "truth", 32)
    environment = make_sokoban(levels, WORLD)
    scenarios = jax.jit(jax.vmap(environment.scenario_prior.sample))(jax.random.split(jax.random.key(1), 32))
    experts = solvers(WORLD)(scenarios)
    run = lambda i, u: rollout(environment, experts(i), u)
    states = jax.jit(jax.vmap(run))(jnp.arange(32), scenarios).state
    solved = np.asarray(jax.jit(jax.vmap(environment.solved))(np.asarray(states)[:, -1]))
    moves = solve(np.asarray(scenarios.initial), WORLD.boxes).length
    np.testing.assert_array_equal(solved, moves <= WORLD.horizon)  # shortest solutions, so all that fit are found


# Stages.


@pytest.mark.slow
def test_the_evaluation_has_every_row_of_the_figure(smoke):
    found = json.loads((smoke / "evaluation.json").read_text())
    steps = policy_evaluation.EvaluationPreset(SMOKE).steps
    assert steps == (0, 2, 5, 10, 15, 20, 25)
    rows = {(row["policy"], row["t"]) for row in found["estimates"] if row["t"] is not None}
    assert rows == {(f"π{i}", t) for i in range(3) for t in steps}
    assert {row["method"] for row in found["estimates"] if row["t"] is None} == {"IS", "WIS", "PDIS"}
    assert (smoke / "evaluation.csv").read_text().count("\n") == 1 + 3 + 3 * (7 + 3)
    assert "</svg>" in (smoke / "evaluation.svg").read_text()


@pytest.mark.slow
def test_each_seed_has_a_scenario_model_and_a_log_of_its_own(smoke, tmp_path):
    shutil.copytree(smoke, tmp_path / "run")
    preset = replace(evaluation_preset(SMOKE, "smoke"), seeds=2, parts_of_t=(1.0,))
    found = policy_evaluation.reproduce(tmp_path / "run", preset, False)
    first = [row for row in found["estimates"] if row["seed"] == 0]
    whole = json.loads((smoke / "evaluation.json").read_text())
    assert found["truth"] == whole["truth"]  # of the same policies, and
    assert first == [row for row in whole["estimates"] if row["t"] in (None, 25)]  # the stages of seed 0 were reused
    assert [len(list((tmp_path / "run" / "stages").glob(f"{name}-*/"))) for name in STAGES] == [1, 1, 2, 2, 2]
    assert {row["seeds"] for row in found["over seeds"]} == {2}


@pytest.mark.slow
def test_a_figure_has_the_same_bytes_each_time(smoke):
    found = json.loads((smoke / "evaluation.json").read_text())
    assert policy_evaluation.draw(found) == policy_evaluation.draw(found) == (smoke / "evaluation.svg").read_text()


def test_means_and_intervals_over_seeds():
    row = {"policy": "π0", "t": 5, "low": 0.0, "high": 0.0, "standard error": 0.1, "malformed": None}
    row |= {"effective sample size": 10.0, "verdict": "trust"}
    truth = [row | {"method": "on-policy", "t": None, "value": 4.0}]
    found = [row | {"seed": i, "method": "CF-PE(5)", "value": v} for i, v in enumerate((3.0, 4.0, 6.0))]
    found[1] |= {"verdict": "do not trust", "effective sample size": 40.0}
    (mean,) = policy_evaluation.summarize(truth, found)["over seeds"]
    # Errors 1/4, 0 and 1/2: standard deviation 1/4, and 4.3027 is Student's quantile with two degrees of freedom.
    assert (mean["relative error"], mean["seeds"], mean["verdict"]) == (0.25, 3, "do not trust")
    np.testing.assert_allclose(mean["error interval"], [0.0, 0.25 + 4.3027 * 0.25 / np.sqrt(3)], rtol=1e-4)
    np.testing.assert_allclose([mean["effective sample size"], mean["truth"], mean["value"]], [20.0, 4.0, 13 / 3])
    (alone,) = policy_evaluation.summarize(truth, found[:1])["over seeds"]
    assert alone["error interval"] == policy_evaluation.relative_error(found[0], truth[0])["error interval"]
    (unknown,) = policy_evaluation.summarize(truth, [*found[:2], found[2] | {"value": None}])["over seeds"]
    assert (unknown["relative error"], unknown["error interval"], unknown["value"]) == (None, None, None)


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(smoke):
    numbers = lambda folder: json.loads((folder / "evaluation.json").read_text())["estimates"]
    times = lambda: {path.name: path.stat().st_mtime_ns for path in (smoke / "stages").glob("*-*")}
    before, made = numbers(smoke), times()
    reproduce("evaluation", smoke)
    assert numbers(smoke) == before
    assert times() == made


@pytest.mark.slow
def test_a_second_run_has_the_same_numbers(smoke, tmp_path):
    numbers = lambda folder: json.loads((folder / "evaluation.json").read_text())["estimates"]
    reproduce("evaluation", tmp_path)
    assert numbers(tmp_path) == numbers(smoke)


@pytest.mark.slow
def test_a_changed_setting_makes_only_what_depends_on_it_anew(smoke):
    before = {path.name for path in (smoke / "stages").iterdir()}
    changed = replace(SMOKE, truth=48)
    stages = Stages(smoke / "stages")
    made = Pipeline(stages, changed, False).levels("truth")
    assert list(stages.seconds()) == [made.name]
    Pipeline(stages, changed, False).policy()
    new = {path.name for path in (smoke / "stages").iterdir()} - before
    assert {name.rpartition("-")[0] for name in new} == {"levels-truth"}


@pytest.mark.slow
@pytest.mark.parametrize("measured", [32, 0])
def test_a_policy_by_impala_is_a_stage_too(tmp_path, measured):
    recipe = ImpalaRecipe(network=SMALLEST_POLICY, updates=3, batch=4, levels=64, seed=5)
    pipeline = Pipeline(Stages(tmp_path), replace(SMOKE, policy=recipe, seed=5, evaluation_levels=measured), False)
    path, policy = pipeline.policy()
    alone = learn(recipe, InProcess(recipe.work(pipeline.environment("policy"))), Running(evaluation_episodes=0))
    assert eqx.tree_equal(policy, alone.state.policy)
    assert [row["updates"] for row in held_out_curve(read_log(training_log(path)))] == ([3] if measured else [])
    assert not work_folder(path).exists()


@pytest.mark.slow
def test_a_policy_is_sharpened_when_it_has_learned():
    recipe = PolicyRecipe(replace(SMALLEST_POLICY, memory="last-seen"), updates=3, batch=4, levels=64)
    levels = draw_levels(jax.random.key(0), WORLD, "policy", 64)
    made = lambda recipe: train_policy(0, WORLD, levels, recipe, Running(evaluation_episodes=0)).state.policy
    plain = made(recipe)
    assert eqx.tree_equal(made(replace(recipe, sharpness=2.0)), sharpened(plain, 2.0))
    assert not eqx.tree_equal(sharpened(plain, 2.0), plain)


def test_who_is_sharpened_does_the_same_more_surely():
    policy = eqx.filter_jit(SMALLEST_POLICY.first_policy)(jax.random.key(0), WORLD)
    observation = draw_levels(jax.random.key(1), WORLD, "log", 1)[0]
    ask = eqx.filter_jit(lambda policy: policy.with_value(policy.initial_carry(), observation)[1:])
    (before, value), (after, same) = ask(policy), ask(sharpened(policy, 3.0))
    np.testing.assert_allclose(after.logits, 3 * before.logits, rtol=1e-5)
    assert value == same


def test_a_stage_that_somebody_touched_is_refused(tmp_path):
    stages = Stages(tmp_path, Console(quiet=True))
    make = lambda: {"numbers.json": b"[1, 2, 3]"}
    assert stages.result("numbers", {"n": 3}, {}, make)["numbers.json"] == b"[1, 2, 3]"
    (file,) = tmp_path.glob("numbers-*/numbers.json")
    file.write_bytes(b"[1, 2, 4]")
    again = Stages(tmp_path, Console(quiet=True))
    with pytest.raises(ArtifactError, match=r"numbers\.json.*SHA-256.*or remove .*numbers-"):
        again.result("numbers", {"n": 3}, {}, make)


def test_a_stage_that_fails_leaves_nothing_behind(tmp_path):
    stages = Stages(tmp_path, Console(quiet=True))

    def broken() -> dict[str, bytes]:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        stages.result("numbers", {}, {}, broken)
    assert not list(tmp_path.glob("numbers-*"))
    assert stages.result("numbers", {}, {}, lambda: {"a": b"1"}) == {"a": b"1"}


def test_an_input_that_changes_makes_a_stage_anew(tmp_path):
    stages = Stages(tmp_path, Console(quiet=True))
    inputs = []
    for content in (b"1", b"2"):
        settings = {"content": content.decode()}
        stages.result("input", settings, {}, lambda content=content: {"a": content})
        inputs.append(tmp_path / f"input-{stages.digest('input', settings, {})}")
    names = {stages.make("output", {}, {"in": path}, lambda path: path.mkdir()).name for path in inputs}
    assert len(names) == 2
    assert read_result(inputs[0]) == {"a": b"1"}


# The other figures.


@pytest.mark.parametrize("preset", OWN_WORLDS)
@pytest.mark.parametrize("world", SOKOBAN_WORLDS)
def test_every_preset_has_its_sizes_in_every_world(preset, world):
    sizes = ingredients(preset, world, seed=2)
    for figure in FIGURES.values():
        made = figure.preset(sizes, preset).ingredients
        assert (made.world, made.seed) == (world, 2)
        assert not isinstance(made.policy, ImpalaRecipe) or made.policy.world == world
    assert ingredients(preset) == ingredients(preset, OWN_WORLDS[preset])


@pytest.mark.slow
def test_search_mismatch_and_models_are_reproduced_too(smoke):
    found = reproduce("search", smoke)
    assert set(found["final"]) == {"CF-GPS", "IMPALA"}
    last = {
        name: [run["return"][-1] for run in found["runs"] if run["setting"]["method"] == name]
        for name in found["final"]
    }
    for name, row in found["final"].items():
        assert row["seeds"] == len(row["solved"]["seeds"]) == 2
        assert row["return"]["seeds"] == last[name]
        assert row["return"]["low"] <= np.mean(last[name]) <= row["return"]["high"]
    assert "</svg>" in (smoke / "search.svg").read_text()
    summary = reproduce("mismatch", smoke)
    assert set(summary["t"]) == {"0", "1", "25"}
    assert "</svg>" in (smoke / "mismatch.svg").read_text()
    found = reproduce("models", smoke)
    assert [row["t"] for row in found["scenario model"]] == [0, 1, 5, 10, 15, 25]
    assert [row["updates"] for row in found["policy's curve"]] == [3]
    assert "</svg>" in (smoke / "models.svg").read_text()


def test_whole_seeds_are_kept_and_not_run_again(tmp_path):
    preset = search_preset(SMOKE, "smoke")
    curve = {"updates": [1, 2], "episodes": [2, 4], "solved": [0.0, 0.5], "return": [0.1, 0.7]}
    for seed in range(preset.seeds):
        runs = [{"setting": asdict(setting), "seed": seed, **curve} for setting in preset.settings]
        found = {"preset": policy_search._recipe(preset), "runs": runs}
        policy_search.seed_file(tmp_path, preset, seed).write_text(json.dumps(found))
    made = policy_search.reproduce(tmp_path, preset, progress=False)
    assert made["final"]["CF-GPS"]["solved"]["seeds"] == [0.5, 0.5]
    assert not list((tmp_path / "stages").glob("*-*")), "no level was drawn for it"
    # More seeds are asked for without a doubt of the others; another recipe is another experiment.
    kept = lambda preset, seed: policy_search.kept(tmp_path, preset, seed, preset.settings[0])
    assert kept(replace(preset, seeds=5), 1) is not None
    assert kept(replace(preset, seeds=5), 2) is None
    assert kept(replace(preset, beta=0.4), 1) is None
    policy_search.seed_file(tmp_path, preset, 0).write_text("{}")
    with pytest.raises(CouldaError, match=r"search-seed-0\.json: expected the curves of a seed .*remove it"):
        kept(preset, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Reproduce("mismatch", seeds=2), "--seeds is for evaluation and searches, and not for mismatch"),
        (Reproduce("search", privileged="no"), "--privileged no is for evaluation, and not for search"),
        (Reproduce("search", seeds=0), "--seeds is 0; it must be at least 1"),
    ],
)
def test_what_a_figure_has_not_is_refused(tmp_path, asked, why):
    with pytest.raises(CouldaError, match=re.escape(why)):
        replace(asked, folder=tmp_path).run()
    assert not list(tmp_path.iterdir())


def test_seeds_that_are_asked_for():
    sizes = ingredients("smoke")
    asked = lambda figure, **options: Reproduce(figure, **options)._asked(FIGURES[figure].preset(sizes, "smoke"))
    assert asked("search", seeds=7).seeds == 7
    assert asked("search").seeds == search_preset(sizes, "smoke").seeds
    assert (asked("evaluation", seeds=7, privileged="no").seeds, asked("evaluation").privileged) == (7, True)


def test_where_a_run_was_stopped_does_not_show_in_its_curve(tmp_path):
    """A stop is measured, at update 3 here."""
    preset = replace(search_preset(ingredients("smoke"), "smoke"), updates=5, evaluate_every=2)
    lines = [{"step": step, "held_out/solved": step / 10, "held_out/return": step} for step in (2, 3, 4, 5)]
    lines.insert(1, {"step": 2, "steps_per_second": 7.0, "objective/dead": 0.5})
    (tmp_path / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = policy_search.curve(tmp_path, preset)
    assert found["updates"] == [2, 4, 5]
    assert found["episodes"] == [4, 8, 10]
    assert found["solved"] == [0.2, 0.4, 0.5]


def test_the_solver_plans_in_inferred_levels_however_malformed(smoke):
    preset = search_preset(SMOKE, "smoke")
    pipeline = Pipeline(Stages(smoke / "stages"), SMOKE, False)
    environment = pipeline.environment("policy")
    # An untrained scenario model draws tiles at random: levels without an agent, with many, with any number of boxes.
    source = Learned(environment, ConvDRAW(jax.random.key(0), num_layers=1, channels=4, latents=2))
    made = policy_search.make_search(pipeline, environment, source, preset, policy_search.Setting("CF-GPS"))
    updated, info = made.step(jax.random.key(2), made.init(preset.first_policy(0)))
    assert 0 <= info.objective.dead <= 1
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(updated.policy) if eqx.is_array(leaf))


# Measures.


def test_relative_error_and_its_interval():
    truth = {"value": 4.0, "standard error": 0.03}
    row = {"value": 3.0, "standard error": 0.04}
    found = policy_evaluation.relative_error(row, truth)
    np.testing.assert_allclose(found["relative error"], 0.25)
    np.testing.assert_allclose(found["error interval"], [(1 - 1.96 * 0.05) / 4, (1 + 1.96 * 0.05) / 4])
    assert policy_evaluation.relative_error({"value": None}, truth)["relative error"] is None


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.7, 1.0), (0.0, 0.6), (-0.3, 0.8)])
def test_divergence_between_two_gaussians_is_the_closed_form(shift, scale):
    normal = Gaussian(np.zeros((5, 1)), np.zeros((5, 1)))
    other = Gaussian(np.full((5, 1), shift), np.full((5, 1), np.log(scale)))
    exact = np.log(scale) + (1 + shift**2) / (2 * scale**2) - 0.5
    np.testing.assert_allclose(mismatch.divergence_between(normal, other, 0), exact, atol=2e-3)


def test_a_policy_that_does_nothing_solves_nothing():
    class Idle(ConvLSTMPolicy):
        def with_value(self, carry, observation):
            carry, distribution, value = super().with_value(carry, observation)
            return carry, type(distribution)(logits=jnp.array([-jnp.inf] * 4 + [0.0])), value

    idle = Idle(jax.random.key(0), 7, 7, channels=4, units=4)
    found = HeldOut.drawn(0, WORLD, 16).solve_rate(jax.random.key(0), idle)
    assert found["held_out/solved"] == 0
    assert found["held_out/return"] == 0


@pytest.mark.slow
def test_levels_of_a_run_are_those_of_its_pool(smoke):
    pipeline = Pipeline(Stages(smoke / "stages"), SMOKE, False)
    for pool in POOLS:
        assert (pool_of(read_pool(pipeline.levels(pool))) == pool).all()
