"""Figure 4 (appendix D): how far the scenario model is from the world, in its latent space, for t = 0, 1 and T.

In a perfect model E_h[p(Z | h_t)] = E_u[q(Z | u, h_t)]: what is drawn on average is what real levels are encoded as.
Both are mixtures of Gaussians, one component per episode, so that the densities along each dimension of Z are known and
KL(averaged prior ‖ averaged posterior) is an integral over a line.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from coulda.drawing import as_svg, new_figure
from coulda.environments.sokoban import Sokoban
from coulda.experiments.pipeline import Ingredients, Pipeline
from coulda.extras import require
from coulda.hindsight.conv_draw import ConvDRAW, Gaussian
from coulda.hindsight.source import history_length
from coulda.policies import UniformPolicy
from coulda.pomdp import batched, rollout
from coulda.stages import Stages
from coulda.storage import replace_file, replace_json

GRID = np.linspace(-6, 6, 241)
"""Where densities are compared, in standard deviations of the averaged prior."""
SHOWN = 1000
"""Episodes in the picture."""


@dataclass(frozen=True)
class MismatchPreset:
    """Sizes of the whole experiment."""

    ingredients: Ingredients = field(default_factory=Ingredients)
    episodes: int = 2000

    @property
    def steps(self) -> tuple[int, ...]:
        """The unconditional, the filtering and the smoothing model."""
        return 0, 1, self.ingredients.sokoban.horizon


class Latents(eqx.Module):
    """Components of the averaged prior and the averaged posterior, `[N, D]` each."""

    prior: Gaussian
    posterior: Gaussian


def reproduce(folder: Path, preset: MismatchPreset, progress: bool = True) -> dict[str, Any]:
    """All stages; the last writes `mismatch.json` and `mismatch.svg` into `folder`."""
    with Stages(folder / "stages") as stages:
        return _reproduce(folder, preset, Pipeline(stages, preset.ingredients, progress))


def _reproduce(folder: Path, preset: MismatchPreset, pipeline: Pipeline) -> dict[str, Any]:
    stages = pipeline.stages
    model_path, network = pipeline.scenario_model()
    environment = pipeline.environment("truth")
    keys = jax.random.split(pipeline.key("mismatch"), preset.episodes)

    def make(t: int) -> dict[str, bytes]:
        latents = jax.tree.map(np.asarray, latents_given(environment, network, jnp.int32(t), keys))
        return {"mismatch.json": msgspec.json.encode(measure(latents))}

    found = {}
    for t in preset.steps:
        inputs = {"model": model_path, "levels": pipeline.levels("truth")}
        result = stages.result(f"mismatch-{t}", {"episodes": preset.episodes, "t": t}, inputs, lambda t=t: make(t))
        found[str(t)] = msgspec.json.decode(result["mismatch.json"])
    numbers = {t: {k: v for k, v in row.items() if k != "embedding"} for t, row in found.items()}
    summary = {"preset": asdict(preset), "t": numbers, "seconds": stages.seconds()}
    replace_json(folder / "mismatch.json", summary)
    replace_file(folder / "mismatch.svg", draw(found).encode())
    return summary


@eqx.filter_jit
def latents_given(environment: Sokoban, network: ConvDRAW, steps: Array, keys: Array) -> Latents:
    """p(Z | h_t) along draws from it, and q(Z | u, h_t) along draws from that, of one episode a key."""

    def one(key: Array) -> Latents:
        key_scenario, key_prior, key_posterior = jax.random.split(key, 3)
        scenario = environment.scenario_prior.sample(key_scenario)
        episode = rollout(environment, UniformPolicy(5), scenario).episode
        length, noise = history_length(episode, steps), network.noise(*scenario.initial.shape)
        drawn = network.draw(network.read(episode, length), noise.sample(key_prior)["latents"])
        _, encoded = network.elbo(network.certain(scenario.initial), episode, length, noise.sample(key_posterior))
        flat = lambda gaussian: Gaussian(gaussian.mean.reshape(-1), gaussian.log_scale.reshape(-1))
        return Latents(flat(drawn.prior), flat(encoded.posterior))

    return batched(one, keys)


def measure(latents: Latents) -> dict[str, Any]:
    """KL of every dimension, whitened by the averaged prior; and the two largest as a picture."""
    prior, posterior = whitened(latents)
    divergence = np.array([divergence_between(prior, posterior, d) for d in range(prior.mean.shape[1])])
    first, second = np.argsort(-divergence)[:2]
    return {
        "divergence": float(divergence.sum()),
        "largest divergence": [float(divergence[first]), float(divergence[second])],
        "dimensions": [int(first), int(second)],
        "embedding": [
            np.round(part[:SHOWN, [first, second]], 3).tolist()
            for part in (posterior.mean, np.exp(posterior.log_scale))
        ],
    }


def whitened(latents: Latents) -> tuple[Gaussian, Gaussian]:
    """Both, shifted and scaled so that the averaged prior has mean 0 and variance 1 in every dimension."""
    prior = latents.prior
    mean = prior.mean.mean(0)
    scale = np.sqrt(prior.mean.var(0) + np.exp(2 * prior.log_scale).mean(0))
    move = lambda gaussian: Gaussian((gaussian.mean - mean) / scale, gaussian.log_scale - np.log(scale))
    return move(prior), move(latents.posterior)


def divergence_between(prior: Gaussian, posterior: Gaussian, dimension: int) -> float:
    """KL(averaged prior ‖ averaged posterior) along one dimension, in nats, on `GRID`."""
    p, q = (_density(gaussian.mean[:, dimension], gaussian.log_scale[:, dimension]) for gaussian in (prior, posterior))
    # A floor far below any sample's density keeps empty regions of the posterior finite.
    return float(np.sum(np.where(p > 0, p * (np.log(p + 1e-300) - np.log(q + 1e-12)), 0.0)) * (GRID[1] - GRID[0]))


def _density(mean: Any, log_scale: Any) -> np.ndarray:
    """The density of a mixture with equal weights, on `GRID`; its components are at least a step of the grid wide."""
    scale = np.maximum(np.exp(log_scale), GRID[1] - GRID[0])[:, None]
    return np.mean(np.exp(-0.5 * ((GRID - mean[:, None]) / scale) ** 2) / (scale * np.sqrt(2 * np.pi)), axis=0)


def draw(found: dict[str, Any]) -> str:
    """One panel per t, as SVG: prior as a red circle, embeddings of true levels as crosses, their density in blue."""
    require("matplotlib", extra="plots")
    from matplotlib.patches import Circle

    figure = new_figure(9.5, 3.4)
    figure.set_dpi(144)
    names = {0: "unconditional", 1: "filtering"}
    line = GRID[np.abs(GRID) <= 3]
    for axes, (t, row) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        mean, scale = np.array(row["embedding"])
        along = np.exp(-0.5 * ((line[:, None, None] - mean) / scale) ** 2) / scale
        density = along[..., 1] @ along[..., 0].T
        # The density at its own resolution, and crosses as pixels: as shapes they are megabytes.
        axes.imshow(density, cmap="Blues", origin="lower", extent=(-3, 3, -3, 3), interpolation="none")
        axes.plot(*mean.T, "k+", ms=3, alpha=0.3, rasterized=True)
        axes.add_patch(Circle((0, 0), 1, fill=False, color="red", lw=2))
        title = f"{names.get(int(t), 'smoothing')} model, t = {t}\nKL {row['divergence']:.2g} nats"
        axes.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", title=title)
    return as_svg(figure)
