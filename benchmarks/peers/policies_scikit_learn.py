"""scikit-learn's classifiers as policies, beside coulda: run by `benchmarks/policies.py` in an environment of its own.

Two are fitted to what a log did, and evaluated on it; one never saw the last action. What coulda says must be what
`predict_proba` says, and the table that of the same probabilities as columns.
"""

import json

import jax
import numpy as np
from gymnasium import spaces
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coulda.episodes import Schema, checked_log
from coulda.evaluation import ImportanceSampling, compare
from coulda.policies import LoggedPolicy, as_policy

EPISODES, STEPS, ACTIONS = 2000, 10, 4


def main() -> None:
    """Print how far coulda's numbers are from theirs."""
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(EPISODES * (STEPS + 1), 6)).astype(np.float32)
    last = np.arange(EPISODES) * (STEPS + 1) + STEPS
    seen = np.delete(observation, last, 0)
    action = (seen[:, :ACTIONS] + rng.gumbel(size=(len(seen), ACTIONS))).argmax(1)
    logits = seen[:, :ACTIONS]
    log_prob = (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(len(seen)), action]
    schema = Schema(spaces.Box(-np.inf, np.inf, (6,)), spaces.Discrete(ACTIONS))
    lengths, reward = np.full(EPISODES, STEPS), seen[:, 0] * (action == 0)
    log = checked_log(schema, observation, action, reward, lengths, np.ones(EPISODES, bool), log_prob)
    few = action < ACTIONS - 1
    models = {
        "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression()).fit(seen, action),
        "RandomForestClassifier": RandomForestClassifier(30, max_depth=6, random_state=0).fit(seen, action),
        "without the last action": LogisticRegression().fit(seen[few], action[few]),
    }
    policies = {name: as_policy(model, schema.action_space) for name, model in models.items()}
    columns, differences = {}, {}
    for name, model in models.items():
        said = np.zeros((len(observation), ACTIONS))
        said[:, model.classes_] = model.predict_proba(observation)
        differences[name] = float(np.abs(policies[name].probabilities(observation) - said).max())
        with np.errstate(divide="ignore"):
            taken = np.log(np.delete(said, last, 0)[np.arange(len(seen)), action]).astype(np.float32)
        columns[name] = LoggedPolicy(taken, said.astype(np.float32))
    methods = [ImportanceSampling(kind) for kind in ("weighted", "per_decision")]
    found = [compare(jax.random.key(0), log, given, methods) for given in (policies, columns)]
    pairs = [
        (found[0].estimates[name][method].value, found[1].estimates[name][method].value)
        for name in models
        for method in ("WIS", "PDIS")
    ]
    print(
        json.dumps(
            {
                "episodes": EPISODES,
                "largest difference of a probability": differences,
                "largest difference of an estimate": max(abs(a - b) for a, b in pairs if a is not None),
                "WIS": {name: found[0].estimates[name]["WIS"].value for name in models},
                "on the log": float(log.reward.sum() / EPISODES),
            }
        )
    )


if __name__ == "__main__":
    main()
