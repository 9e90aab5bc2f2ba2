"""`coulda search`: find a policy on counterfactual trajectories."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import jax
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from coulda.cli.executors import Who
from coulda.cli.presets import PresetName
from coulda.cli.showing import Screen, plain
from coulda.episodes import collect, read_any
from coulda.evaluation import Method, OnPolicy, OnScenarios, Returns, compare
from coulda.evaluation.reading import Log
from coulda.executors import Executor
from coulda.hindsight import Prior
from coulda.policies import save_parameters
from coulda.pomdp import Policy
from coulda.progress import bar
from coulda.recipes.running import Running
from coulda.recipes.search import SEARCH_RECIPES, SearchRecipe, metric, returns, search_policy
from coulda.recipes.worlds import World
from coulda.report import Report, explore, provenance, save_report, summarize, tabulate
from coulda.report.page import check_place
from coulda.search import Logged

REPORTED, EXPLORED = 200, 60
"""Fresh episodes of the first policy for the report's table, where there is no log; and those in its explorer."""


@dataclass(frozen=True)
class Search:
    """Search for a policy. The scenarios make the method: prior is MB-PS, hindsight is CF-GPS.

    What is not given is what the preset has. `--folder` keeps the best and the last checkpoints and a log.jsonl.
    """

    preset: PresetName = "desktop"
    """How large: 2 updates for smoke, which mean nothing, 50 for quick, 200 for desktop, and 20000 for paper."""
    recipe: OmitArgPrefixes[SearchRecipe] = field(default_factory=SearchRecipe)
    """What is searched, where, and how."""
    running: OmitArgPrefixes[Running] = field(default_factory=Running)
    """Where the run is kept, and what is shown."""
    who: OmitArgPrefixes[Who] = field(default_factory=Who)
    """Who collects episodes."""
    out: Path | None = None
    """A folder for the policy that was found (see `coulda.policies.load_parameters`) and for the report that `coulda
    report` makes a page of."""

    @classmethod
    def of(cls, world: str | None = None, preset: PresetName = "desktop") -> "Search":
        """The command of a preset in a world."""
        every = 1000 if preset == "paper" else 50
        return cls(preset, replace(SEARCH_RECIPES[preset], world=world), Running.of(preset, evaluate_every=every))

    def run(self) -> None:
        """Search, and print what was found; write it where asked."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)  # before the work: a wrong path should cost nothing
            check_place(self.out)
        world, console = self.recipe.find(), Screen()
        if self.recipe.scenarios in ("hindsight", "first-observation"):
            with bar("choosing where scenarios come from", None):
                why = world.choice.why
            console.print(f"Scenarios: {why}.", highlight=False, soft_wrap=True, markup=False)
        with self._open() as executor:
            trained = search_policy(self.recipe, world, self.running, executor)
        trained.check_finished()
        policies = {"before": self.recipe.first_policy(world), f"after {trained.step} updates": trained.state.policy}
        console.print(self.before_and_after(world, policies))
        if self.out is not None:
            save_parameters(self.out / "policy", trained.state.policy)
            self._report(self.out, world, policies)
            console.print(f"`coulda report {self.out}` makes a page of it.", highlight=False, soft_wrap=True)

    def before_and_after(self, world: World, policies: dict[str, Policy]) -> Table:
        """What the policies are worth in the environment itself, or in the model on the log's scenarios."""
        measured = metric(world)
        measure = returns(self.recipe.make_search(world), self.recipe.seed, self.running.evaluation_episodes)
        title = plain(f"{self.recipe.place}, scenarios from {self.recipe.scenarios}")
        table = Table("policy", measured.replace("_", " "), "95% interval", title=title)
        for name, policy in policies.items():
            found = measure(jax.random.key(self.recipe.seed), policy)
            table.add_row(name, f"{found[measured]:.4g}", f"{found['low']:.4g} … {found['high']:.4g}")
        return table

    def _report(self, out: Path, world: World, policies: dict[str, Policy]) -> None:
        """Both policies on the log, or on fresh episodes of the first: the table, and which episodes would flip."""
        key_log, key_table, key_explore = jax.random.split(jax.random.fold_in(jax.random.key(self.recipe.seed), 3), 3)
        source, asked = world.source(self.recipe.scenarios), Returns(self.recipe.discount)
        methods: list[Method] = [OnScenarios(world.model, source)]
        log = self._log(key_log, world, policies["before"])
        if not isinstance(world.environment, Logged):
            methods.append(OnPolicy(world.environment))
        with bar(f"evaluating on {len(log):,} episodes", len(log)) as advance:
            table = tabulate(compare(key_table, log, policies, methods, returns=asked, advance=advance))
        explorer = None
        if not isinstance(source, Prior):
            first = next(iter(log.batches(EXPLORED)))
            explorer = explore(key_explore, world.model, first, policies, source, returns=asked)
        # By the last part of their paths, which differ between machines.
        config = {name: Path(x).name if isinstance(x, str) else x for name, x in asdict(self.recipe).items()}
        title = f"What was found in {self.recipe.place}"
        facts = provenance({"search": self.recipe.seed}, config)
        save_report(out, Report(title, summarize(table), table, explorer, provenance=facts))

    def _log(self, key: jax.Array, world: World, policy: Policy) -> Log:
        if isinstance(world.environment, Logged):
            assert self.recipe.log is not None
            return read_any(Path(self.recipe.log))
        return collect(key, world.environment, policy, REPORTED)

    def _open(self) -> AbstractContextManager[Executor | None]:
        """Who collects elsewhere; None where this process does."""
        if self.who == Who():
            return nullcontext()
        return self.who.open(self.recipe.collection(self.who.workers))


COMMANDS = Search
