"""cuthbert's bootstrap filter on observations from a file: log evidence of each episode, and processor seconds."""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from cuthbert import filter as run_filter
from cuthbert.smc import particle_filter
from cuthbertlib.resampling import systematic
from cuthbertlib.resampling.adaptive import ess_decorator

with np.load(sys.argv[1], allow_pickle=False) as file:
    observations = jnp.asarray(file["observations"])
particles = int(sys.argv[2])

NOISE, SEEN = 0.5, 0.3


def log_potential(_, state, observation):
    """Log p(o | s)."""
    return jax.scipy.stats.norm.logpdf(observation, state, SEEN)


filtering = particle_filter.build_filter(
    init_sample=lambda key: jax.random.normal(key),
    propagate_sample=lambda key, state, _: 0.9 * state + jnp.sin(state) + NOISE * jax.random.normal(key),
    log_potential=log_potential,
    n_filter_particles=particles,
    resampling_fn=ess_decorator(systematic.resampling, 0.5),
)


def one(key, observations):
    """Log evidence of o_2 … given o_1 = nothing: cuthbert's first state has no observation."""
    first, rest = jax.random.split(key)
    states = run_filter(filtering, observations, filtering.init_prepare(key=first), key=rest)
    return states.log_normalizing_constant[-1], states.particles[-1, 0], states.ancestor_indices[:, 0]


keys = jax.random.split(jax.random.key(0), len(observations))
start = time.process_time()
lowered = jax.jit(jax.vmap(one)).lower(keys, observations)
traced = time.process_time()
run = lowered.compile()
done = time.process_time()
times = []
for _ in range(8):
    begun = time.process_time()
    evidence = jax.block_until_ready(run(keys, observations))[0]
    times.append(time.process_time() - begun)
found = {"trace": traced - start, "compile": done - traced, "warm": min(times), "evidence": float(evidence.mean())}
print(json.dumps(found))
