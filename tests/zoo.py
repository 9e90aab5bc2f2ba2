"""Small structural causal models on which every law is tested, each with its graph in a comment.

They are cached, so that tests that ask the same question share one compiled program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from coulda import SCM, Bernoulli, Categorical, Gumbel, Intervention, Mechanism, Normal, Point, Uniform, do
from coulda.mechanisms import (
    additive,
    exogenous,
    gumbel_max,
    inverse_cdf,
    location_scale,
    quantile,
    table,
    uniformize,
)


@dataclass(frozen=True)
class Specimen:
    """A model, the nodes that are observed, and two interventions on different nodes."""

    name: str
    scm: SCM
    observed: tuple[str, ...]
    first: Intervention
    second: Intervention
    query: str
    engine: str


@cache
def chain() -> Specimen:
    # X → H → Y, X → Y (Pearl's "Joe"), written as plain functions
    scm = SCM(
        noise={"X": Normal(), "H": Normal(), "Y": Normal()},
        mechanisms={
            "X": Mechanism((), lambda u: u),
            "H": Mechanism(("X",), lambda x, u: 0.5 * x + u),
            "Y": Mechanism(("X", "H"), lambda x, h, u: 0.7 * x + 0.4 * h + u),
        },
    )
    return Specimen("chain", scm, ("X", "H", "Y"), do(H=2.0), do(X=-1.0), "Y", "inversion")


@cache
def fork() -> Specimen:
    # X ← Z → Y, with noise that scales
    scm = SCM(
        noise={"Z": Normal(), "X": Normal(), "Y": Normal()},
        mechanisms={
            "Z": exogenous(),
            "X": location_scale(("Z",), lambda z: (jnp.sin(z), jnp.exp(0.3 * z))),
            "Y": location_scale(("Z",), lambda z: (z**2, 1.0 + jnp.abs(z))),
        },
    )
    return Specimen("fork", scm, ("Z", "X", "Y"), do(Z=0.3), do(X=1.0), "Y", "inversion")


@cache
def collider() -> Specimen:
    # X → C ← Y, the collider alone observed: X and Y become dependent
    scm = SCM(
        noise={"X": Normal(), "Y": Normal(1.0, 0.5), "C": Normal(0.0, 0.5)},
        mechanisms={"X": exogenous(), "Y": exogenous(), "C": additive(("X", "Y"), lambda x, y: x + y)},
    )
    return Specimen("collider", scm, ("C",), do(X=0.0), do(Y=2.0), "C", "importance")


@cache
def bandit() -> Specimen:
    # U_c → A → O ← U_c (Figure 1, left): Alice's two job offers
    scm = SCM(
        noise={"U_c": Normal(), "A": Gumbel((2,)), "O": Normal(shape=(2,))},
        mechanisms={
            "U_c": exogenous(),
            "A": gumbel_max(("U_c",), lambda c: jnp.stack([c, -c])),
            "O": Mechanism(("U_c", "A"), lambda c, a, u: c + jnp.asarray([1.0, -0.5])[a] + 0.5 * u),
        },
    )
    return Specimen("bandit", scm, ("U_c", "A", "O"), do(A=1), do(U_c=0.7), "O", "inversion")


@cache
def linear_gaussian() -> Specimen:
    # x → y → z, vectors, with a dense noise matrix that must be solved for
    matrix = jnp.asarray([[1.0, 0.5, 0.0], [0.0, 1.0, 0.2], [0.3, 0.0, 1.0]])
    scm = SCM(
        noise={name: Normal(shape=(3,)) for name in "xyz"},
        mechanisms={
            "x": Mechanism((), lambda u: matrix @ u),
            "y": Mechanism(("x",), lambda x, u: 0.5 * x[::-1] + matrix @ u),
            "z": Mechanism(("x", "y"), lambda x, y, u: x - y + matrix.T @ u),
        },
    )
    return Specimen("linear_gaussian", scm, ("x", "y", "z"), do(y=jnp.ones(3)), do(x=jnp.zeros(3)), "z", "inversion")


@cache
def nonlinear_additive() -> Specimen:
    # X → W → Y, X → Y; Y below all evidence
    scm = SCM(
        noise={"X": Uniform(-1.0, 1.0), "W": Normal(), "Y": Normal()},
        mechanisms={
            "X": exogenous(),
            "W": additive(("X",), lambda x: jnp.exp(x) - x**3),
            "Y": additive(("X", "W"), lambda x, w: jnp.tanh(x * w)),
        },
    )
    return Specimen("nonlinear_additive", scm, ("X", "W"), do(W=0.5), do(X=0.25), "Y", "inversion")


@cache
def discrete_gumbel() -> Specimen:
    # X → Y → Z by Gumbel-max; an impossible category in the table of Z
    y_logits = jnp.log(jnp.asarray([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    z_logits = jnp.log(jnp.asarray([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]]))
    scm = SCM(
        noise={"X": Gumbel((2,)), "Y": Gumbel((3,)), "Z": Gumbel((3,))},
        mechanisms={
            "X": gumbel_max((), lambda: jnp.log(jnp.asarray([0.6, 0.4]))),
            "Y": gumbel_max(("X",), lambda x: y_logits[x]),
            "Z": gumbel_max(("Y",), lambda y: z_logits[y]),
        },
    )
    return Specimen("discrete_gumbel", scm, ("X", "Y", "Z"), do(X=1), do(Y=2), "Z", "inversion")


@cache
def discrete_inverse_cdf() -> Specimen:
    # X → Y → Z, X → Z by uniformization (Lemma 2)
    scm = uniformize(
        {
            "X": table((), [0.6, 0.4]),
            "Y": table(("X",), [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]),
            "Z": inverse_cdf(
                ("X", "Y"), lambda x, y: jax.nn.softmax(jnp.asarray([0.0, 1.0, -1.0]) * (x - y).astype(float))
            ),
        }
    )
    return Specimen("discrete_inverse_cdf", scm, ("X", "Y", "Z"), do(X=1), do(Y=2), "Z", "inversion")


@cache
def partially_observed() -> Specimen:
    # D (hidden) → S → V, D → V: finite noise, and D is never seen
    scm = SCM(
        noise={"D": Bernoulli(0.2), "S": Categorical([0.5, 0.3, 0.2]), "V": Bernoulli(0.1)},
        mechanisms={
            "D": Mechanism((), lambda u: u),
            "S": Mechanism(("D",), lambda d, u: jnp.where(d, (u + 1) % 3, u)),
            "V": Mechanism(("D", "S"), lambda d, s, u: ((s == 1) | d) ^ u),
        },
    )
    return Specimen("partially_observed", scm, ("S", "V"), do(S=0), do(D=True), "V", "enumeration")


@cache
def waiting_times() -> Specimen:
    # R → W by quantiles, W → L deterministic
    scm = SCM(
        noise={"R": Uniform(), "W": Uniform(), "L": Point()},
        mechanisms={
            "R": quantile((), lambda r: r / 4.0, 0.0, 4.0),
            "W": quantile(("R",), lambda w, r: 1 - jnp.exp(-w * (0.5 + r)), 0.0, 40.0),
            "L": Mechanism(("W",), lambda w, _: jnp.log1p(w)),
        },
    )
    return Specimen("waiting_times", scm, ("R", "W"), do(R=2.0), do(W=1.0), "L", "inversion")


SPECIMENS: list[Callable[[], Specimen]] = [
    chain,
    fork,
    collider,
    bandit,
    linear_gaussian,
    nonlinear_additive,
    discrete_gumbel,
    discrete_inverse_cdf,
    partially_observed,
    waiting_times,
]
