"""A small training run in a process of its own, to be interrupted, killed and resumed by tests.

python training.py run FOLDER STEPS PAUSE        train, resuming what is there, with a pause a step
python training.py kill FOLDER STEPS KILLS SEED  train, killed KILLS times, half of them inside a write
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

from coulda.trainer import Trained, TrainerConfig, train

OPTIMIZER = optax.adam(1e-2)


def initial_state():
    weights = jnp.linspace(-1.0, 1.0, 16)
    return {"weights": weights, "optimizer": OPTIMIZER.init(weights)}


@jax.jit
def step(key, state):
    x = jax.random.normal(key, (8, 16))
    loss = lambda weights: jnp.mean((x @ weights - x[:, 0]) ** 2)
    value, gradient = jax.value_and_grad(loss)(state["weights"])
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
        updates, optimizer = OPTIMIZER.update(gradient, state["optimizer"])
    return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": optimizer}, {"loss": value}


def learn(folder: str, steps: int, pause: float) -> int:
    """Train to the end, resuming what is there; how many steps that was."""
    return train_paced(Path(folder), steps, pause).step


def run(folder: Path, steps: int, pause: float) -> None:
    trained = train_paced(folder, steps, pause)
    print(trained.stopped_by, trained.step, flush=True)


def train_paced(folder: Path, steps: int, pause: float) -> Trained:
    def paced(key, state):
        time.sleep(pause)
        return step(key, state)

    config = TrainerConfig(steps=steps, checkpoint_every=2, log_every=1, best="loss")
    return train(jax.random.key(7), paced, initial_state(), config, folder=folder, resume=True, progress=False)


def is_writing(folder: Path) -> bool:
    return any(folder.glob(".step-*.partial"))


def kill(folder: Path, steps: int, kills: int, seed: int) -> None:
    """Children are forked before JAX has started its threads, so that a restart does not import everything anew."""
    rng = random.Random(seed)
    done, inside = 0, 0
    while done < kills:
        child = os.fork()
        if child == 0:
            run(folder, steps, pause=0.005)
            os._exit(0)
        before = len(list(folder.glob("step-*")))
        aimed, deadline = 2 * inside <= done, time.monotonic() + 60
        while not before and not any(folder.glob("step-*")):  # at least one checkpoint before the first kill
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 1.0))
        while aimed and not is_writing(folder) and time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                raise SystemExit("the child finished before it could be killed; give it more steps")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        inside += is_writing(folder)  # what is left over shows where it was
        done += 1
    print(f"{done} kills, {inside} inside writes", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[2] / ".cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    command, folder, steps, *rest = sys.argv[1:]
    if command == "run":
        run(Path(folder), int(steps), *map(float, rest))
    else:
        kill(Path(folder), int(steps), *map(int, rest))
