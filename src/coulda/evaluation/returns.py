"""`Returns`: what is asked of a policy's return, the same of every row of a table."""

from dataclasses import dataclass

import numpy as np

from coulda.errors import CouldaError
from coulda.pomdp.episode import check_discount


@dataclass(frozen=True)
class Returns:
    """G = Σ_t γ^t r_t, t from 0: its mean is estimated, and what else is asked of its distribution."""

    discount: float = 1.0
    """γ, the worth of what is paid one step later, in (0, 1]; 1 is the paper's, undiscounted."""

    quantiles: tuple[float, ...] = ()
    """Such as 0.05 and 0.5, the median."""
    cvar: tuple[float, ...] = ()
    """Shares of the worst returns whose mean is asked for, such as 0.1."""

    def __post_init__(self) -> None:
        check_discount(self.discount)
        for name in ("quantiles", "cvar"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for share in getattr(self, name):
                if not 0 < share < 1:
                    raise CouldaError(f"{name} has {share}; a share lies between 0 and 1, such as 0.05")

    @property
    def beyond_the_mean(self) -> bool:
        """Whether anything is asked of the distribution."""
        return bool(self.quantiles or self.cvar)

    def __str__(self) -> str:
        """Such as "return" or "return, discounted by 0.9"."""
        return "return" if self.discount == 1 else f"return, discounted by {self.discount:g} a step"

    def paid(self, reward: np.ndarray) -> np.ndarray:
        """γ^t r_t of rewards `[..., T]`."""
        return reward if self.discount == 1 else reward * self.discount ** np.arange(reward.shape[-1])
