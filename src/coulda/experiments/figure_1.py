"""Figure 1 of the paper: the SCMs of a contextual bandit (left) and of a POMDP (right)."""

from pathlib import Path

import jax.numpy as jnp

from coulda.environments import tiger
from coulda.mechanisms import additive, exogenous, gumbel_max
from coulda.noise import Gumbel, Normal
from coulda.policies import UniformPolicy
from coulda.pomdp import as_scm
from coulda.pomdp.unrolled import figure_1_positions
from coulda.scm import SCM


def contextual_bandit() -> SCM:
    """Context U_c, action A = f_π(U_c, U_a), outcome O = f_o(A, U_c, U_o)."""
    return SCM(
        noise={"U_c": Normal(), "A": Gumbel((2,)), "O": Normal()},
        mechanisms={
            "U_c": exogenous(),
            "A": gumbel_max(("U_c",), lambda c: jnp.stack([c, -c])),
            "O": additive(("U_c", "A"), lambda c, a: jnp.where(a == 0, c, -c)),
        },
    )


def draw(folder: Path) -> list[Path]:
    """Both pictures, as SVG files in `folder`."""
    places = {"U_c": (1.2, 0.0), "A": (0.0, -1.1), "O": (1.2, -2.2)}
    left = contextual_bandit().draw(observed=["U_c", "A"], positions=places)
    pomdp = as_scm(tiger(horizon=2, reparameterization="gumbel_max"), UniformPolicy(3), horizon=2)
    right = pomdp.draw(observed=["A_1", "A_2"], positions=figure_1_positions(2))
    return [left.save(folder / "figure_1_left.svg"), right.save(folder / "figure_1_right.svg")]
