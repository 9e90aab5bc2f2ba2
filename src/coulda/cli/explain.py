"""`coulda explain LOG --model …`: which decisions of a log mattered, and what others would have made of it."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import tyro
from gymnasium import spaces
from rich.table import Table

from coulda.cli.evaluate import STYLES
from coulda.cli.showing import Screen
from coulda.episodes import Columns, EpisodeLog, StoredLog
from coulda.errors import CouldaError
from coulda.evaluation import Comparison, OnScenarios, Returns, compare
from coulda.explanations import Credit, LogExplanation, Question, credit_log, draw_curve, explain_log
from coulda.explanations.explain import check, check_scenarios
from coulda.hindsight import ScenarioSource
from coulda.hindsight.tables import observed_tables, state_numbers
from coulda.policies import UniformPolicy, find_policy
from coulda.pomdp import POMDP, FinitePOMDP, Policy
from coulda.progress import bar
from coulda.recipes.evaluation import EvaluationRecipe
from coulda.report import Explorer, Report, explore_changes, provenance, save_report, tabulate
from coulda.report.page import check_place
from coulda.storage import replace_json


@dataclass(frozen=True)
class Explain:
    """Find which decisions of a log mattered: what at most k other ones would have made of each episode.

    Models, policies and sources are named `module:name` or `file.py:name`: an object, or a function that makes it. A
    model may be a Gymnasium environment, as it is: its class, or a function that makes one.
    """

    log: Annotated[Path, tyro.conf.Positional]
    """The log, in any format; see `coulda episodes`."""
    model: str
    """The model. Where it is finite and its state is seen the answer is exact, and holds bounds over all mechanisms."""
    changes: int = 3
    """The largest number of decisions that are changed; every smaller one is answered too."""
    scenarios: str = "auto"
    """Where scenarios come from, as for `coulda evaluate`; by default none are needed where the answer is exact."""
    num_scenarios: int = 32
    """The number of scenarios per episode, half to choose by and half to score."""
    episode: int | None = None
    """The number of one episode to explain; all by default."""
    target: float | None = None
    """A return to reach: the least number of changes that does is told, and which episodes one change would save."""
    frozen: tuple[int, ...] = ()
    """Steps, from 0, whose decisions may not be changed."""
    actions: tuple[float, ...] = ()
    """What may be done instead: numbers of discrete actions, all by default; or values of continuous ones to try, those
    of several numbers one after the other."""
    cost: float = 0.0
    """What a change costs, in units of the return."""
    discount: float = 1.0
    """The discount γ of the return Σ γ^t r_t, in (0, 1]; 1 is none."""
    policy: str | None = None
    """Who decides after the logged end, against whom each decision is credited, and by whom the model is held against
    the log; a uniform one for the last two by default."""
    budget: int = Question.budget
    """How many steps of the model a search may take, for each episode."""
    seed: int = 0
    """The seed of everything that is drawn: the same seed gives the same answer."""
    out: Path | None = None
    """A folder for the answer as JSON, for the figure, and for the report that `coulda report` makes a page of."""
    explored: int = 60
    """The number of episodes in the report's explorer."""
    columns: Columns = field(default_factory=Columns)
    """The columns of a log that is a table."""

    def run(self) -> None:
        """Print the answer; write it where asked."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)  # before the work: a wrong path should cost nothing
            check_place(self.out)
        names = () if self.policy is None else (self.policy,)
        recipe = EvaluationRecipe(str(self.log), names, self.model, self.scenarios, columns=self.columns)
        key, console = jax.random.key(self.seed), Screen()
        on_scenarios, found = recipe.on_scenarios, recipe.episodes
        assert on_scenarios is not None
        model = on_scenarios.model
        log = found.read() if isinstance(found, StoredLog) else found
        policy = None if self.policy is None else find_policy(self.policy, model.action_space)
        afterwards = policy if policy is not None and not jax.tree.leaves(policy.initial_carry()) else None
        question = Question(
            self.changes, self.frozen, self._candidates(model), self.cost, self.target, afterwards, self.budget,
            discount=self.discount,
        )  # fmt: skip
        chosen = self._chosen(log)
        check_scenarios(self.num_scenarios)
        source = None if self.scenarios == "auto" and has_tables(model) else on_scenarios.choice.source
        check(model, chosen, source, question, self.episode or 0)
        if policy is None and isinstance(model.action_space, spaces.Discrete):
            policy = UniformPolicy(int(model.action_space.n))
        comparison = self._evaluated(key, log, on_scenarios, policy)
        trust = None if comparison is None else list(comparison.estimates["policy"].values())[-1]
        with bar(f"explaining {len(chosen):,} episodes", len(chosen)) as advance:
            found = explain_log(
                jax.random.fold_in(key, 1), model, chosen, source, question,
                trust=trust, scenarios=self.num_scenarios, first=self.episode or 0, advance=advance,
            )  # fmt: skip
        console.print(curve_table(found))
        for sentence in found.sentences:
            console.print(sentence, highlight=False, markup=False)
        if self.episode is not None:
            console.print(found[0].sentence, highlight=False, markup=False)
        if self.out is not None:
            explored = chosen[: self.explored]
            credited = self._credited(jax.random.fold_in(key, 2), model, explored, policy, source)
            explorer = explore_changes(model, explored, found.head(len(explored)), credited)
            self._write(self.out, found, comparison, explorer)
            console.print(f"`coulda report {self.out}` makes a page of it.", highlight=False, soft_wrap=True)

    def _candidates(self, model: POMDP) -> np.ndarray | None:
        """`actions` in the shape of the model's, `[A, ...]`."""
        space = model.action_space
        if not self.actions:
            return None
        if isinstance(space, spaces.Discrete):
            for action in self.actions:
                if not float(action).is_integer():
                    raise CouldaError(f"action {action} is no number of an action; give some of 0 … {space.n - 1}")
            return np.array(self.actions, int)
        assert space.shape is not None
        size = math.prod(space.shape)
        if len(self.actions) % size:
            raise CouldaError(f"actions are {len(self.actions)} numbers, and each of {space} takes {size}")
        return np.array(self.actions, np.float32).reshape(-1, *space.shape)

    def _chosen(self, log: EpisodeLog) -> EpisodeLog:
        if self.episode is None:
            return log
        if not 0 <= self.episode < len(log):
            raise CouldaError(f"episode is {self.episode}, but the log has the episodes 0 … {len(log) - 1}")
        return log.take([self.episode])

    def _evaluated(
        self, key: jax.Array, log: EpisodeLog, method: OnScenarios, policy: Policy | None
    ) -> Comparison | None:
        """The model held against the log: its verdict is that of the explanation. None where no policy can be run."""
        return (
            None if policy is None else compare(key, log, {"policy": policy}, [method], returns=Returns(self.discount))
        )

    def _credited(
        self, key: jax.Array, model: POMDP, log: EpisodeLog, policy: Policy | None, source: ScenarioSource | None
    ) -> list[Credit] | None:
        """What each decision was worth against the policy's own; None where actions are not numbered."""
        if policy is None or not isinstance(model.action_space, spaces.Discrete):
            return None
        return credit_log(key, model, log, policy, source, scenarios=self.num_scenarios, discount=self.discount)

    def _write(self, out: Path, found: LogExplanation, comparison: Comparison | None, explorer: Explorer) -> None:
        replace_json(out / "explanations.json", found.plain())
        draw_curve(found, out / "curve.png")
        names = {"log": self.log, "model": self.model, "scenarios": self.scenarios, "policy": self.policy}
        config = {key: Path(value).name for key, value in names.items() if value is not None}
        config |= {"changes": self.changes, "frozen": list(self.frozen), "cost": self.cost, "discount": self.discount}
        table = None if comparison is None else tabulate(comparison)
        facts = provenance({"explain": self.seed}, config)
        save_report(out, Report("Which decisions mattered", tuple(found.sentences), table, explorer, provenance=facts))


COMMANDS = Explain


def has_tables(model: POMDP) -> bool:
    """Whether a model's counterfactuals have a closed form, so that nothing need be drawn."""
    if not isinstance(model, FinitePOMDP):
        return False
    try:
        state_numbers(model)
        observed_tables(model)
    except CouldaError:
        return False
    return True


def curve_table(found: LogExplanation) -> Table:
    """What each number of changes buys, for the terminal."""
    shown = Table("changes", "mean return", "gain", "interval", "whatever the mechanism", "verdict")
    for k, (value, gain) in enumerate(zip(found.curve, found.improvements, strict=True)):
        limits, worst = gain.interval, found.answers.worst
        interval = "" if limits is None or len(found) < 2 else rf"\[{limits.low:.4f}, {limits.high:.4f}]"
        sure = "" if worst is None else f"{worst[:, k].mean():.4f}"
        verdict = f"[{STYLES[value.verdict]}]{value.verdict}[/]"
        shown.add_row(str(k), f"{value.value:.4f}", f"{gain.value:.4f}", interval, sure, verdict)
    return shown
