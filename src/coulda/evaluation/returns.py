"""`Returns`: what is asked of a policy's return, the same of every row of a table."""

from dataclasses import dataclass

import numpy as np

from coulda.pomdp.episode import check_discount


@dataclass(frozen=True)
class Returns:
    """G = Σ_t γ^t r_t, t from 0, whose mean is estimated."""

    discount: float = 1.0
    """γ, the worth of what is paid one step later, in (0, 1]; 1 is the paper's, undiscounted."""

    def __post_init__(self) -> None:
        check_discount(self.discount)

    def __str__(self) -> str:
        """Such as "return" or "return, discounted by 0.9"."""
        return "return" if self.discount == 1 else f"return, discounted by {self.discount:g} a step"

    def paid(self, reward: np.ndarray) -> np.ndarray:
        """γ^t r_t of rewards `[..., T]`."""
        return reward if self.discount == 1 else reward * self.discount ** np.arange(reward.shape[-1])
