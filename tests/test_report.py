"""The report without a browser: what the builders put in it, what the page holds, and what it must not."""

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from coulda.cli import main
from coulda.environments.pendulum import Pendulum
from coulda.environments.sokoban import Sokoban, UniformLevels
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.evaluation import OnScenarios, compare, model_free
from coulda.hindsight import Exact
from coulda.policies import UniformPolicy
from coulda.pomdp import GumbelMaxChoice
from coulda.pomdp.scenario import at_step
from coulda.report import Report, explore, load_report, save_report, summarize, tabulate, view_of, write_report
from coulda.report.contents import ExploredEpisode, Explorer, Play, TileFrames
from coulda.report.explorer import DIGITS
from coulda.report.frames import sokoban_view
from coulda.report.page import render
from coulda.storage import ArtifactError
from tests.reports import HOSTILE, PoolPosterior, linear_model, sokoban_explorer, sokoban_world
from tests.triage import BEHAVIOR, TARGET, triage


@pytest.fixture(scope="module")
def world() -> Sokoban:
    return sokoban_world()


@pytest.fixture(scope="module")
def explorer(world) -> Explorer:
    return sokoban_explorer(world)


@pytest.fixture(scope="module")
def comparison():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 1000)  # as in tests of evaluation: they share programs
    policies = {"treat": TARGET, "as logged": BEHAVIOR}
    methods = [*model_free(log), OnScenarios(triage(), Exact(triage()))]
    return replace(compare(jax.random.key(1), log, policies, methods), truth={"treat": 0.3})


def decoded(text: str, shape: tuple[int, ...]) -> np.ndarray:
    place = {int(code): i for i, code in enumerate(DIGITS)}
    return np.array([place[code] for code in text.encode()]).reshape(-1, *shape)


def data_of(page: str) -> str:
    return re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1]


def test_factual_is_the_log_and_counterfactual_the_rollout(world, explorer):
    log = collect(jax.random.key(1), world, UniformPolicy(5), 12)
    expert = explorer.policies.index("expert")
    for i, episode in enumerate(explorer.episodes):
        assert episode.factual.rewards == tuple(np.asarray(log[i].reward).tolist())
        seen = decoded(episode.observed.tiles, (7, 7))
        # What looks empty may be hidden, which is a tile of its own; all else is as logged.
        assert (np.where(seen == 7, 0, seen) == np.asarray(log[i].observation)).all()
        level = decoded(episode.factual.frames.tiles, (7, 7))[0].astype(np.uint8)
        assert (np.asarray(world.levels.levels) == level).all((1, 2)).any()
        # The same scenario under the policy: the expert starts from the level that was inferred, and solves it.
        would = decoded(episode.counterfactual[expert].frames.tiles, (7, 7))
        assert (would[0] == level).all()
        assert sum(episode.counterfactual[expert].rewards) == episode.counterfactual[expert].returns[0]
    assert {11.0} & {play.returns[0] for play in (e.counterfactual[expert] for e in explorer.episodes)}


def test_policies_keep_their_order(explorer):
    """Not that of their names: the expert wins more than chance does."""
    assert explorer.policies == ("expert", "chance")
    means = [np.mean([e.counterfactual[i].returns for e in explorer.episodes]) for i in (0, 1)]
    assert means[0] > means[1] + 5


def test_agreement_counts_the_draws_with_this_tile(explorer):
    for episode in explorer.episodes:
        counts = decoded(episode.factual.frames.agreement, (7, 7))
        assert ((counts >= 1) & (counts <= explorer.num_samples)).all()
        assert (counts[0][0] == explorer.num_samples).all()  # the border is wall in every level
    first = [decoded(e.factual.frames.agreement, (7, 7))[0].min() for e in explorer.episodes]
    assert min(first) < explorer.num_samples  # one masked observation leaves doubt


@pytest.mark.slow
def test_the_whole_episode_leaves_less_doubt(world, explorer):
    def doubt(found: Explorer) -> float:
        counts = [decoded(e.factual.frames.agreement, (7, 7))[0] for e in found.episodes]
        return 1 - np.mean(counts) / found.num_samples

    assert doubt(sokoban_explorer(world, steps=13)) < doubt(explorer) < doubt(sokoban_explorer(world, steps=0))


def test_an_observed_world_is_replayed_to_the_letter():
    """Exact hindsight of a world without hidden states: the frames are the log, in every draw."""
    model = triage()
    log = collect(jax.random.key(0), model, BEHAVIOR, 20)
    found = explore(jax.random.key(1), model, log, {"treat": TARGET}, Exact(model), num_samples=4)
    assert found.threshold == pytest.approx(log.episode_returns.mean(), rel=1e-5)
    for i, episode in enumerate(found.episodes):
        assert episode.factual.frames.values[0] == tuple(np.asarray(log[i].observation, float).tolist())
        assert episode.factual.frames.low == episode.factual.frames.high
        assert sum(episode.factual.rewards) == pytest.approx(episode.factual.returns[0], abs=1e-5)
        assert len(episode.factual.actions) == len(log[i].reward)


@pytest.mark.parametrize("model", [linear_model(), triage(), Pendulum()], ids=lambda model: type(model).__name__)
def test_every_model_has_a_view(model):
    view = view_of(model)
    scenario = model.scenario_prior.sample(jax.random.key(0))
    state = model.initial(scenario.initial)
    observation = model.observe(state, at_step(scenario.observation, 0))
    assert view.state(state).shape == view.observation(observation).shape == (len(view.scene.channels),)


def test_masked_tiles_are_told_from_empty_ones_near_the_agent(world):
    level = np.asarray(world.levels.levels[0])
    blank = np.zeros_like(level)
    row, column = np.argwhere(np.isin(level, (4, 6)))[0]
    blank[row, column] = 4
    seen = np.asarray(sokoban_view(world).observation(jnp.asarray(blank)))
    assert (seen[row - 1 : row + 2, column - 1 : column + 2] != 7).all()
    assert (np.delete(seen, [row - 1, row, row + 1], axis=0) == 7).all()


def test_what_cannot_be_explored_is_refused(world):
    log = collect(jax.random.key(1), world, UniformPolicy(5), 2)
    source = PoolPosterior(world, world.levels.levels, jnp.int32(3))
    with pytest.raises(CouldaError, match="num_samples is 64; draw 1 to 63"):
        explore(jax.random.key(0), world, log, {"chance": UniformPolicy(5)}, source, num_samples=64)
    with pytest.raises(CouldaError, match="nothing to explore: 2 episodes, 0 policies"):
        explore(jax.random.key(0), world, log, {}, source)


def test_the_table_is_the_comparison(comparison):
    table = tabulate(comparison)
    estimates = list(comparison.rows())
    assert [(row.policy, row.method, row.value) for row in table.rows] == [(p, e.method, e.value) for p, e in estimates]
    for row, (policy, estimate) in zip(table.rows, estimates, strict=True):
        assert row.verdict == estimate.verdict
        assert [finding.sentence for finding in row.findings] == [d.sentence for d in estimate.diagnostics]
        assert row.error == comparison.error(policy, estimate.method)
    assert {v.method for v in table.verdicts} == {e.method for _, e in estimates}
    for found in table.verdicts:
        worse = [row.verdict for row in table.rows if row.method == found.method]
        assert found.verdict == max(worse, key=("trust", "caution", "do not trust").index)
    assert "CF-PE" in summarize(table)[0]
    assert table.logged_mean == pytest.approx(comparison.logged_returns.mean())


def test_nothing_in_the_data_can_leave_it():
    report = Report(HOSTILE, (HOSTILE,))
    page = render(report)
    assert msgspec.json.decode(data_of(page), type=Report) == report
    assert page.count("</script>") == 2
    assert "<img src=x" not in page
    assert "\u2028" not in data_of(page)
    assert page.count("<title>") == 1


def test_the_same_report_gives_the_same_bytes(tmp_path, world, explorer):
    again = sokoban_explorer(world)
    assert again == explorer
    for name, found in (("a", explorer), ("b", again)):
        write_report(tmp_path / name / "index.html", Report("twice", explorer=found))
    first, second = ((tmp_path / name / "index.html").read_bytes() for name in "ab")
    assert first == second
    assert render(Report("other", explorer=explorer)).encode() != first
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["index.html"]


def test_the_page_names_no_other_place():
    page = render(Report("alone"))
    assert set(re.findall(r"https?://[^\s\"'<`]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in page


def test_sixty_episodes_of_the_papers_size_stay_below_five_megabytes():
    rng = np.random.default_rng(0)
    frames = lambda: TileFrames("".join(rng.choice(list("ABCDEFG"), 5100)), "I" * 5100)
    play = lambda: Play(frames(), ("→ right",) * 50, (0.0,) * 50, (0.0,) * 8)
    model = Sokoban(UniformLevels(np.zeros((1, 10, 10), np.uint8)), GumbelMaxChoice(5))
    episodes = tuple(ExploredEpisode(i, frames(), play(), (play(),) * 3) for i in range(60))
    explorer = Explorer(sokoban_view(model).scene, ("a", "b", "c"), 8, 10.0, episodes)
    assert len(render(Report("large", explorer=explorer)).encode()) < 5e6


def test_a_report_is_kept_and_made_into_a_page(tmp_path, explorer, capsys):
    report = Report("kept", explorer=explorer)
    save_report(tmp_path / "run", report)
    assert load_report(tmp_path / "run") == report
    main(["report", str(tmp_path / "run")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "run" / "index.html")
    assert (tmp_path / "run" / "index.html").read_text() == render(report)
    main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "elsewhere.html")])
    assert (tmp_path / "elsewhere.html").exists()


def test_wrong_folders_and_tampered_reports_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "absent")])
    assert "there is no report in" in capsys.readouterr().err
    save_report(tmp_path, Report("whole"))
    with pytest.raises(FileExistsError):
        save_report(tmp_path, Report("again"))
    part = tmp_path / "report" / "report.json"
    part.write_text(part.read_text().replace("whole", "owned"))
    with pytest.raises(ArtifactError, match="SHA-256"):
        load_report(tmp_path)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    assert not (tmp_path / "index.html").exists()


def test_json_reads_back_as_written(comparison, explorer):
    report = Report("round", summarize(tabulate(comparison)), tabulate(comparison), explorer)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    assert json.loads(msgspec.json.encode(report))["explorer"]["scene"]["type"] == "grid"
