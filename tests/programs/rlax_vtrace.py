"""Writes what rlax computes for random episodes, as JSON: `python rlax_vtrace.py > ../fixtures/vtrace_rlax.json`.

Run it in an environment that has rlax; nothing else here needs it.
"""

import json

import jax.numpy as jnp
import numpy as np
import rlax


def example(seed: int, steps: int, end: int, discount: float, decay: float, clip_rho: float) -> dict:
    """An episode of `steps` steps that is over after `end` of them: no reward, no value and no discount from there."""
    rng = np.random.default_rng(seed)
    live = np.arange(steps) < end
    log_ratio, reward, value = (np.where(live, rng.normal(size=steps), 0).astype(np.float32) for _ in range(3))
    following = np.append(value[1:], 0).astype(np.float32)
    discounts = np.where(np.arange(steps) < end - 1, discount, 0).astype(np.float32)
    found = rlax.vtrace_td_error_and_advantage(
        *map(jnp.asarray, (value, following, reward, discounts, np.exp(log_ratio))),
        lambda_=decay,
        clip_rho_threshold=clip_rho,
        clip_pg_rho_threshold=clip_rho,
    )
    arrays = {
        "log_ratio": log_ratio,
        "reward": reward,
        "value": value,
        "live": live,
        "target": np.where(live, value + found.errors, 0),
        "advantage": np.where(live, found.pg_advantage, 0),
    }
    settings = {"discount": discount, "decay": decay, "clip_rho": clip_rho}
    return settings | {name: array.tolist() for name, array in arrays.items()}


if __name__ == "__main__":
    cases = [
        (0, 1, 1, 1.0, 1.0, 1.0),
        (1, 12, 12, 1.0, 1.0, 1.0),
        (2, 12, 7, 0.9, 1.0, 1.0),
        (3, 12, 5, 0.97, 0.9, 2.0),
    ]
    print(json.dumps({"rlax": rlax.__version__, "examples": [example(*case) for case in cases]}, indent=1))
