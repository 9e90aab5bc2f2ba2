"""`Recorder`: log any Gymnasium environment while somebody plays it."""

from typing import Any

import gymnasium
import jax
import numpy as np

from coulda.episodes.log import EpisodeLog, Schema, unpadded
from coulda.episodes.spaces import leaf, space_tree
from coulda.episodes.validation import Source, from_episodes
from coulda.errors import CouldaError
from coulda.pomdp import Episode


class Recorder(gymnasium.Wrapper):
    """Records every finished episode; `log()` returns them.

    Pass the probability with which the behavior policy took the action, where it is known:
    `env.step(action, probability=0.25)`. An episode that is left by `reset` before its end is kept as one that
    was cut off; one without any step is forgotten.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._episodes: list[Episode] = []
        self._terminated: list[bool] = []
        self._observations: list[Any] = []
        self._steps: list[tuple[Any, float, float]] = []

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._finish(terminated=False)
        observation, info = self.env.reset(**arguments)
        self._observations = [_copy(self.observation_space, observation)]
        return observation, info

    def step(self, action: Any, probability: float | None = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act, and record it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        log_prob = float("nan") if probability is None else float(np.log(probability))
        self._steps.append((_copy(self.action_space, action), float(reward), log_prob))
        self._observations.append(_copy(self.observation_space, observation))
        if terminated or truncated:
            self._finish(bool(terminated))
        return observation, reward, terminated, truncated, info

    def log(self) -> EpisodeLog:
        """The finished episodes so far."""
        if not self._episodes:
            raise CouldaError("nothing is recorded yet: no episode was finished")
        schema = Schema(self.observation_space, self.action_space)
        return from_episodes(schema, self._episodes, np.array(self._terminated), Source(str(self.env)))

    def _finish(self, terminated: bool) -> None:
        if self._steps:
            actions, rewards, log_probs = zip(*self._steps, strict=True)
            numbers = np.array(rewards, np.float32), np.array(log_probs, np.float32)
            self._episodes.append(unpadded(_stack(self._observations), _stack(actions), *numbers))
            self._terminated.append(terminated)
        self._observations, self._steps = [], []


def _copy(space: gymnasium.Space, value: Any) -> Any:
    """Arrays of the space's dtypes: environments reuse their buffers."""
    return jax.tree.map(lambda part, x: np.array(x, leaf(part).dtype), space_tree(space), value)


def _stack(values: Any) -> Any:
    return jax.tree.map(lambda *parts: np.stack(parts), *values)
