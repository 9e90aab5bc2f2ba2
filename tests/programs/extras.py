"""What each extra is for, tried in an environment that has perhaps one of them: `python extras.py FOLDER`.

Prints, for each, "works" or the error, as JSON. An error must name what is missing, and the extra that brings it.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from coulda import SCM, Mechanism, Normal, collect, compare, counterfactual, model_free
from coulda.environments import tiger
from coulda.environments.sokoban import generate, solve
from coulda.environments.sokoban.drawing import write_strip
from coulda.episodes import read_any, write_any
from coulda.executors import Ray, WorkSpec, gather
from coulda.planners.mcts import MCTS
from coulda.policies import TabularPolicy, UniformPolicy, find_policy, write_onnx
from coulda.trainer.logs import open_logs

MODEL = tiger(horizon=2, reparameterization="gumbel_max")
LOG = collect(jax.random.key(0), MODEL, UniformPolicy(3), 50)
BOLD = TabularPolicy([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]])


def plots(folder: Path) -> None:
    compare(jax.random.key(0), LOG, {"bold": BOLD}, model_free(LOG)[:1]).plot().save(folder / "table.svg")


def sokoban(folder: Path) -> None:
    levels = generate(jax.random.key(0), 2, 7, 7, 1)
    solve(levels, 1)
    write_strip(folder / "levels.png", levels, levels, ["one", "two"])


def minari(folder: Path) -> None:
    write_any(folder / "tiger-v0", LOG)
    _same(read_any(folder / "tiger-v0"))


def tables(folder: Path) -> None:
    for name in ("log.csv", "log.parquet"):
        write_any(folder / name, LOG)
        _same(read_any(folder / name))
    compare(jax.random.key(0), LOG, {"bold": BOLD}, model_free(LOG)[:1]).to_frame()


def onnx(folder: Path) -> None:
    write_onnx(folder / "bold.onnx", BOLD)
    find_policy(str(folder / "bold.onnx"), MODEL.action_space)


def mcmc(folder: Path) -> None:
    scm = SCM({"X": Normal(), "Y": Normal()}, {"X": Mechanism((), jnp.tanh), "Y": Mechanism(("X",), jnp.add)})
    counterfactual(jax.random.key(0), scm, {"Y": 0.5}, query=["X"], abduction="nuts", num_samples=20)


def mcts(folder: Path) -> None:
    MCTS(MODEL, 4)(jnp.int32(0), MODEL.initial(MODEL.initial_noise.sample(jax.random.key(0))), None)


def ray(folder: Path) -> None:
    with Ray(WorkSpec("recipes:counted"), num_workers=1) as cluster:
        cluster.publish(0, jnp.float32(2))
        assert [float(batch.value["product"]) for batch in gather(cluster, [3])] == [6]


def tensorboard(folder: Path) -> None:
    with open_logs(folder, 0, 1, tensorboard=True, progress=False) as log:
        log(1, {"loss": 0.0})


def _same(log) -> None:
    np.testing.assert_array_equal(np.asarray(log[:].reward), np.asarray(LOG.reward))


EXTRAS = (plots, sokoban, minari, tables, onnx, mcmc, mcts, ray, tensorboard)

if __name__ == "__main__":
    found = {}
    for use in EXTRAS:
        try:
            use(Path(sys.argv[1]))
            found[use.__name__] = "works"
        except Exception as error:
            found[use.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))
