"""CF-GPS on fitted models: nobody knows the world but the log, and what is found is better in the world."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coulda.cli import main
from coulda.episodes import collect, write_log
from coulda.evaluation import on_policy
from coulda.fitting import NeuralFit, fit
from coulda.policies import FeedforwardPolicy, TabularPolicy, UniformPolicy, load_parameters
from coulda.search import Logged, PolicySearch
from coulda.studies.fitting import pushed
from tests.triage import triage


@pytest.mark.slow
def test_a_policy_is_found_in_networks_that_were_fitted_to_a_log():
    """s' = 0.7 s + a - 1 + noise, paid by -|s'|: whoever steers is better off by 2, a dozen standard errors."""
    log, _ = pushed(0, "the same", 200)
    fitted = fit(jax.random.key(0), log, NeuralFit("additive", updates=100))
    spaces = fitted.model.observation_space, fitted.model.action_space
    first = FeedforwardPolicy(jax.random.key(1), *spaces, width=16, depth=1)
    search = PolicySearch(Logged.of(log, fitted.model), fitted.model, fitted.source, optax.adam(0.03), num_episodes=64)
    state = search.init(first)
    for key in jax.random.split(jax.random.key(2), 60):
        state, _ = search.step(key, state)
    before, after = (_earned(policy) for policy in (first, state.policy))
    assert after > before + 1.0


def _earned(policy) -> float:
    """The mean return in the world itself, 4,000 episodes on the same noise."""
    rng = np.random.default_rng(1)
    state, total = rng.normal(size=4000), np.zeros(4000)
    act = jax.jit(jax.vmap(lambda seen, u: jnp.argmax(policy((), seen)[1].logits + u)))
    for _ in range(5):
        action = np.asarray(act(jnp.asarray(state[:, None], jnp.float32), jnp.asarray(rng.gumbel(size=(4000, 3)))))
        state = 0.7 * state + (action - 1) + rng.normal(size=4000)
        total -= np.abs(state)
    return float(total.mean())


@pytest.mark.slow
def test_from_a_log_to_a_better_policy_by_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log", collect(jax.random.key(0), triage(), UniformPolicy(2), 300))
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom coulda.policies import TabularPolicy\npolicy = TabularPolicy(np.full((4, 2), 0.5))\n"
    )
    main(["fit", "log", "--reparameterization", "gumbel_max", "--out", "model"])
    named = "--model model --policy own.py:policy --log log --folder run --out out"
    brief = "--updates 40 --episodes 32 --rollouts 4 --learning-rate 0.3 --evaluation-episodes 200 --no-progress"
    main(["search", *named.split(), *brief.split()])
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert "model_return" in lines[-1]
    found = load_parameters("out/policy", TabularPolicy(np.full((4, 2), 0.5)))
    earned = {
        name: on_policy(jax.random.key(1), triage(), policy, 4000)
        for name, policy in (("uniform", UniformPolicy(2)), ("found", found))
    }
    # Treating the ill and the worse earns 0.25 more; two standard errors of 4,000 episodes are below 0.03.
    assert (earned["found"].value or 0) > (earned["uniform"].value or 0) + 0.1
