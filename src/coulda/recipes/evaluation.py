"""What `coulda evaluate` is asked, as names and numbers, so that workers anywhere build the same from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from coulda.environments.gym import load_model
from coulda.episodes import Columns, policy_in_table, read_any
from coulda.episodes.formats import tables_of
from coulda.errors import CouldaError
from coulda.evaluation import Comparison, Method, OnPolicy, OnScenarios, Precision, Returns, compare, model_free
from coulda.evaluation.reading import Log
from coulda.evaluation.rivals import Rivals, rivals
from coulda.executors import Executor, Work, WorkSpec
from coulda.hindsight.choosing import found_anywhere
from coulda.naming import anywhere
from coulda.policies import find_policy
from coulda.policies.checks import check_policy_acts
from coulda.policies.logged import COLUMN
from coulda.pomdp import Policy
from coulda.progress import Advance
from coulda.storage import MANIFEST

if TYPE_CHECKING:  # imported where a model is fitted, or was: a first table is waited for
    from coulda.fitting import Fitted


@dataclass(frozen=True)
class EvaluationRecipe:
    """A log, policies, a model and a source of scenarios by their names, and how precisely to answer.

    Objects are named `package.module:name` or `file.py:name`: an object, or a function that makes it.
    """

    log: str
    """The path of the log, in any format."""
    policies: tuple[str, ...]
    """The policies' names; in the table they are called by the last part of these. Somebody else's are wrapped
    (`coulda.policies.as_policy`), `file.onnx` is one, and `column:x` is one whose probabilities are columns of the log.
    """
    model: str | None = None
    """The model, for MB-PE and CF-PE: an object, or the folder of a model that `coulda fit` made."""
    scenarios: str = "auto"
    """Where scenarios come from: a name (auto, exact, observed, particles, tempered, inverted, nuts, prior), the folder
    of a trained source, `corrected:` and that folder, or a function of the model that returns a source."""
    rival: str | None = None
    """Another model of the same world, to ask which of the two explains the log better."""
    steps: tuple[int, ...] = ()
    """The values of t of CF-PE(t); all of the episode by default."""
    environment: str | None = None
    """Where policies may be run, for the truth."""
    precision: Precision = field(default_factory=Precision)
    """The intervals, and the scenarios per episode."""
    returns: Returns = field(default_factory=Returns)
    """What is asked of them."""
    columns: Columns = field(default_factory=Columns)
    """The columns of a log that is a table."""
    fit: bool = False
    """Whether a model is fitted to the log where none is named; otherwise the table is model-free."""
    seed: int = 0
    """The seed of that fit."""

    def __post_init__(self):
        if self.rival is not None and self.model is None:
            raise CouldaError(f"--rival {self.rival} needs a --model to be held against")

    @cached_property
    def episodes(self) -> Log:
        """The log, opened."""
        return read_any(Path(self.log), self.columns)

    @cached_property
    def named_policies(self) -> dict[str, Policy]:
        """The policies, loaded; those whose last parts are the same are called by all of their names."""
        short = [_short(name) for name in dict.fromkeys(self.policies)]
        return {
            name if short.count(_short(name)) > 1 else _short(name): self._policy(name)
            for name in dict.fromkeys(self.policies)
        }

    def _policy(self, name: str) -> Policy:
        if name.startswith(COLUMN):
            return policy_in_table(tables_of(Path(self.log)) or self.log, name.removeprefix(COLUMN), self.columns)
        return find_policy(name, self.episodes.schema.action_space)

    def check_policies(self) -> None:
        """Refuse policies that could not be run in a model of the log: before one is fitted, which takes long."""
        schema = self.episodes.schema
        for name, policy in self.named_policies.items():
            try:
                check_policy_acts(policy, schema.observation_space, schema.action_space, "the log")
            except CouldaError as error:
                raise CouldaError(f"policy '{name}' does not fit: {error}") from error

    @cached_property
    def on_scenarios(self) -> OnScenarios | None:
        """The method that rests on the model, where there is one."""
        steps = (0, *self.steps) if self.steps else None
        if (fitted := self.fitted) is not None:
            return fitted.method(steps)
        return None if self.model is None else OnScenarios(load_model(self.model), self.scenarios, steps)

    @cached_property
    def fitted(self) -> "Fitted | None":
        """The model that was fitted to a log: the one in the folder that is named, or one that is fitted now."""
        if not (self.fit if self.model is None else (Path(self.model) / MANIFEST).exists()):
            return None
        from coulda.fitting import fit, load_fitted, recipe_for

        if self.model is not None:
            return load_fitted(self.model)
        recipe, _ = recipe_for(self.episodes)
        return fit(jax.random.key(self.seed), self.episodes, recipe)

    @property
    def methods(self) -> list[Method]:
        """All that apply."""
        found = model_free(self.episodes)
        if self.on_scenarios is not None:
            found.append(self.on_scenarios)
        if self.environment is not None:
            found.append(OnPolicy(load_model(self.environment)))
        return found

    @property
    def spec(self) -> WorkSpec:
        """The work on scenarios, for workers that may run in any folder."""
        if self.model is None:
            raise CouldaError("workers run policies in a model, and none is named; add --model")
        found = asdict(self) | {
            "log": str(Path(self.log).resolve()),
            "policies": [anywhere(name) for name in self.policies],
            "model": str(Path(self.model).resolve()) if self.fitted is not None else anywhere(self.model),
            "scenarios": found_anywhere(self.scenarios),
        }
        return WorkSpec("coulda.recipes.evaluation:work", {"recipe": found})

    @cached_property
    def against(self) -> OnScenarios | None:
        """The same with the rival in the place of the model, where there is one."""
        return None if self.rival is None else replace(self, model=self.rival, rival=None).on_scenarios

    def rivals(self, key: Array) -> Rivals | None:
        """Which model explains the log better, where two are named. Consumes `key`."""
        if self.rival is None:
            return None
        other = self.against
        assert other is not None
        assert self.on_scenarios is not None
        assert self.model is not None
        names = [name.rpartition(":")[2] for name in (self.model, self.rival)]
        if names[0] == names[1]:
            names = [self.model, self.rival]
        methods = self.on_scenarios, other
        for method in methods:
            method.check_log(self.episodes)
        sources = [method.choice.source for method in methods]
        return rivals(key, self.episodes, dict(zip(names, sources, strict=True)))

    def compare(self, key: Array, executor: Executor | None = None, advance: Advance | None = None) -> Comparison:
        """The table. Consumes `key`."""
        return compare(
            key,
            self.episodes,
            self.named_policies,
            self.methods,
            precision=self.precision,
            returns=self.returns,
            executor=executor,
            advance=advance,
        )


def _short(name: str) -> str:
    """The last part of a name, or of a file's.

    >>> _short("my.py:greedy"), _short("runs/policy.onnx")
    ('greedy', 'policy')
    """
    return name.rpartition(":")[2] if ":" in name else Path(name).stem


def work(recipe: Mapping[str, Any]) -> Work:
    """What workers do, from a recipe as JSON has it."""
    precision, columns = Precision(**recipe["precision"]), Columns(**recipe["columns"])
    returns = Returns(**recipe["returns"])
    named = {"policies": tuple(recipe["policies"]), "steps": tuple(recipe["steps"])}
    made = EvaluationRecipe(**{**recipe, **named, "precision": precision, "returns": returns, "columns": columns})
    assert made.on_scenarios is not None
    return made.on_scenarios.work(made.episodes, made.named_policies, made.precision, made.returns)
