"""Expectation maximization by dynamax: nats per observation of the best of several starts, on episodes from a file."""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from dynamax.hidden_markov_model import CategoricalHMM
from dynamax.linear_gaussian_ssm import LinearGaussianConjugateSSM

jax.config.update("jax_enable_x64", True)


def best(model, emissions, rounds, starts):
    reached = []
    for seed in range(starts):
        params, props = model.initialize(jax.random.PRNGKey(seed))
        params, _ = model.fit_em(params, props, emissions, num_iters=rounds, verbose=False)
        each = jax.vmap(lambda one, params=params: model.marginal_log_prob(params, one))(emissions)
        reached.append(float(jnp.sum(each)) / (emissions.shape[0] * emissions.shape[1]))
    return max(value for value in reached if np.isfinite(value))


found = {}
with np.load(sys.argv[1]) as arrays:
    rounds, starts = int(sys.argv[2]), int(sys.argv[3])
    for name in arrays.files:
        kind, _, states = name.split("-")
        seen, start = arrays[name], time.time()
        if kind == "finite":
            model = CategoricalHMM(int(states), 1, int(seen.max()) + 1)
            nats = best(model, jnp.asarray(seen)[..., None], rounds, starts)
        else:
            # Of several episodes `LinearGaussianSSM` makes a first covariance that is none; with its priors, which are
            # weak, it does not.
            nats = best(
                LinearGaussianConjugateSSM(int(states), seen.shape[-1]), jnp.asarray(seen, jnp.float64), rounds, starts
            )
        found[name] = {"nats": nats, "seconds": time.time() - start}
print(json.dumps(found))
