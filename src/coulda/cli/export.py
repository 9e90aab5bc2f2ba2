"""`coulda export my.py:policy found --log LOG`: a policy for use without JAX, as NumPy or as ONNX."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import gymnasium
import tyro

from coulda.environments.gym import load_model
from coulda.episodes import Columns, read_any
from coulda.errors import CouldaError
from coulda.policies import export_policy, find_policy, write_onnx


@dataclass(frozen=True)
class Export:
    """Write a policy that was trained or found for use elsewhere, without JAX.

    A folder needs NumPy alone: `from found.act import load`, then `action, state = load()(observation, state, reward)`.
    A file.onnx, of a policy without memory that is a table, linear or a perceptron, needs any runtime of ONNX.
    """

    policy: Annotated[str, tyro.conf.Positional]
    """The policy, file.py:name or package.module:name: an object, or a function that makes it."""
    to: Annotated[Path, tyro.conf.Positional]
    """A folder that does not exist yet, or a file that ends in .onnx."""
    model: str | None = None
    """The model in which it acts, which says what it sees."""
    log: Path | None = None
    """Or a log, in any format, which says so too."""
    columns: Columns = field(default_factory=Columns)
    """The columns of a log that is a table."""

    def run(self) -> None:
        """Write it, and say how it is used."""
        observations, actions = self._spaces()
        policy = find_policy(self.policy, actions)
        policy.check_spaces(observations, actions)
        if self.to.suffix == ".onnx":
            write_onnx(self.to, policy)
            print(f"{self.to}: its input is a batch of observations, and `coulda evaluate --policy {self.to}` takes it")
        else:
            export_policy(self.to, policy, observations)
            print(f"{self.to}: from {self.to.name}.act import load; action, state = load()(observation, None)")

    def _spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        if (self.model is None) == (self.log is None):
            raise CouldaError("name a --model or a --log, one of them: it says what the policy sees and does")
        if self.model is not None:
            model = load_model(self.model)
            return model.observation_space, model.action_space
        assert self.log is not None
        schema = read_any(self.log, self.columns).schema
        return schema.observation_space, schema.action_space


COMMANDS = Export
