"""The published way to explanations with at most k changes, measured again: what it computes, step by step, in numpy.

Tsirtsis, De & Gomez-Rodriguez (2021) draw 1,000 samples of the Gumbels' posterior for each logged transition, and for
every state and action look one sample after the other where it would have led; the table of frequencies is then
maximized over by dynamic programming, state by state and action by action, for one k at a time. This file repeats the
arithmetic in fresh code, so that both can be timed in one run.
"""

import numpy as np

DRAWS = 1000


def counterfactual_tables(
    rng: np.random.Generator, transition: np.ndarray, states: np.ndarray, actions: np.ndarray
) -> list[np.ndarray]:
    """Frequencies of next states for each step, `[A, S, S]` each; of the last step the model's own."""
    with np.errstate(divide="ignore"):
        logits = np.log(transition)
    tables = []
    for t in range(len(actions) - 1):
        noise = _posterior(rng, logits[actions[t], states[t]], states[t + 1])
        table = np.zeros_like(transition)
        for action in range(transition.shape[0]):
            for state in range(transition.shape[1]):
                for one in noise:
                    table[action, state, np.argmax(one + logits[action, state])] += 1
        tables.append(table / DRAWS)
    return [*tables, transition]


def best_value(tables: list[np.ndarray], pay: np.ndarray, first: int, actions: np.ndarray, changes: int) -> float:
    """The best return with at most k changes; state s pays `pay[s]`."""
    states = len(pay)
    value = np.zeros((changes + 1, states))
    for t in range(len(actions) - 1, -1, -1):
        updated = np.zeros_like(value)
        for left in range(changes + 1):
            for state in range(states):
                best = -np.inf
                for action in range(tables[t].shape[0]):
                    after = left - int(action != actions[t])
                    if after < 0:
                        continue
                    worth = pay[state]
                    for following in range(states):
                        worth += tables[t][action, state, following] * value[after, following]
                    best = max(best, worth)
                updated[left, state] = best
        value = updated
    return float(value[changes, first])


def _posterior(rng: np.random.Generator, logits: np.ndarray, chosen: int) -> np.ndarray:
    """Gumbels given their argmax, top-down, `[DRAWS, K]`."""
    found = np.zeros((DRAWS, len(logits)))
    for draw in range(DRAWS):
        top = rng.gumbel()
        for k, logit in enumerate(logits):
            fresh = rng.gumbel() + logit
            found[draw, k] = (top if k == chosen else -np.log(np.exp(-fresh) + np.exp(-top))) - logit
    return found
