"""Named reparameterizations (Lemma 2): conditional distributions as deterministic functions of noise.

The same conditional distribution can be written as a function of noise in many ways. All give the same
interventional distributions; *they give different counterfactuals*. So the choice is always named.

| name             | node       | noise          | x = f(pa, u)                    | u given (pa, x)                   |
|------------------|------------|----------------|---------------------------------|-----------------------------------|
| `exogenous`      | any        | any            | u                               | x                                 |
| `additive`       | continuous | any            | m(pa) + u                       | x - m(pa)                         |
| `location_scale` | continuous | any            | m(pa) + s(pa) u                 | (x - m(pa)) / s(pa)               |
| `gumbel_max`     | discrete   | `Gumbel((K,))` | argmax_k logits_k(pa) + u_k     | truncated Gumbels, top-down       |
| `inverse_cdf`    | discrete   | `Uniform()`    | #{k : F_k(pa) ≤ u}              | uniform on [F_{x-1}(pa), F_x(pa)) |
| `quantile`       | continuous | `Uniform()`    | F^{-1}(u | pa), by bisection    | F(x | pa)                         |

Each knows the exact posterior of its own noise, given its parents and its value. It takes no key: it
*transports* a fresh draw of the noise, from its prior to its posterior.

Two categories that share noise are *coupled*. What a discrete choice would have been under other probabilities, given
what it was, needs no draws at all: `GumbelCoupling` and `InverseCDFCoupling` know it in closed form.
"""

from coulda.mechanisms.choices import (
    GumbelMaxChoice,
    InverseCDFChoice,
    category_at,
    choice,
    gumbel_argmax,
    gumbel_given_argmax,
    uniform_given_category,
)
from coulda.mechanisms.couplings import GumbelCoupling, InverseCDFCoupling, gumbel_coupling, inverse_cdf_coupling
from coulda.mechanisms.nodes import (
    Additive,
    Exogenous,
    GumbelMax,
    InverseCDF,
    LocationScale,
    Quantile,
    Reparameterization,
    additive,
    exogenous,
    gumbel_max,
    inverse_cdf,
    location_scale,
    quantile,
    table,
    uniformize,
)

__all__ = [
    "Additive",
    "Exogenous",
    "GumbelCoupling",
    "GumbelMax",
    "GumbelMaxChoice",
    "InverseCDF",
    "InverseCDFChoice",
    "InverseCDFCoupling",
    "LocationScale",
    "Quantile",
    "Reparameterization",
    "additive",
    "category_at",
    "choice",
    "exogenous",
    "gumbel_argmax",
    "gumbel_coupling",
    "gumbel_given_argmax",
    "gumbel_max",
    "inverse_cdf",
    "inverse_cdf_coupling",
    "location_scale",
    "quantile",
    "table",
    "uniform_given_category",
    "uniformize",
]
