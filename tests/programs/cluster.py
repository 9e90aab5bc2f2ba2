"""Ray under fire: a test cluster of a head and two nodes, in a process of its own. Prints one line of JSON.

python cluster.py bits                         Ray returns the bits of this process
python cluster.py actors KILLS SEED            workers killed while requests are in flight
python cluster.py nodes KILLS SEED             whole nodes killed and replaced
python cluster.py learner KILLS SEED FOLDER    a learner killed and resumed, against one left alone
python cluster.py brief FOLDER                 a little of each

Run it where the network is its own, such as in `unshare -n` with `lo` up.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # also for the workers, which Ray gives the driver's path
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from coulda.executors import InProcess, WorkSpec  # noqa: E402
from coulda.executors.learner import Learner  # noqa: E402
from coulda.executors.ray_cluster import Ray  # noqa: E402
from tests.programs import training  # noqa: E402

SMALL = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
# Nodes are found dead after about five seconds, where Ray by default waits for half a minute.
IMPATIENT = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
QUIET = {"log_to_driver": False, "logging_level": "warning"}


def ray_processes(name: str) -> list[int]:
    """Descendants of this process that Ray calls `ray::NAME…`."""
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:  # it ended meanwhile
            continue
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return [pid for pid in mine if titles.get(pid, "").startswith(f"ray::{name}")]


def kill_one(rng: random.Random, name: str) -> None:
    """SIGKILL for a process of that name, as soon as there is one."""
    deadline = time.monotonic() + 600  # a busy machine may be slow to start it anew
    while not (found := ray_processes(name)):
        if time.monotonic() > deadline:
            raise SystemExit(f"no process ray::{name} in ten minutes")
        time.sleep(0.05)
    os.kill(rng.choice(sorted(found)), signal.SIGKILL)


def same_bits(a, b) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


class TestCluster:
    """A head without workers, and two nodes with room for two each."""

    def __init__(self):
        head = {**SMALL, "num_cpus": 0, "include_dashboard": False, "_system_config": IMPATIENT}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(**SMALL) for _ in range(2)]

    def __enter__(self):
        ray.init(address=self.cluster.address, **QUIET)
        return self

    def __exit__(self, *_):
        ray.shutdown()
        self.cluster.shutdown()

    def kill_node(self, rng: random.Random) -> None:
        self.cluster.remove_node(self.nodes.pop(rng.randrange(2)), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(**SMALL))


def bits(_cluster: TestCluster) -> dict:
    """Episodes of a recurrent policy, and batches too large to travel in Ray's messages."""
    from tests.programs import tiger_recipe

    compared = 0
    episodes = WorkSpec("tests.programs.tiger_recipe:episodes", {"seed": 3})
    large = WorkSpec("tests.programs.recipes:counted", {"size": 100_000})
    for spec, parameters in ((episodes, tiger_recipe.policy), (large, np.float32)):
        answers = []
        for kind in (InProcess, Ray):
            with kind(spec) as executor:
                for version, index in [(0, 0), (0, 1), (1, 0), (2, 7), (0, 1)]:
                    executor.publish(version, parameters(version))
                    executor.request(index)
                answers.append([executor.next() for _ in range(5)])
        for mine, theirs in zip(*answers, strict=True):
            assert (mine.version, mine.index) == (theirs.version, theirs.index)
            assert same_bits(mine.value, theirs.value)
            compared += 1
        assert not same_bits(answers[1][0].value, answers[1][1].value)  # the twin: another index
    return {"batches compared": compared}


def under_fire(executor: Ray, spec: WorkSpec, kills: int, strike) -> dict:
    """Keep requests in flight while `strike` is called now and then; every answer, in order, is checked."""
    expected = InProcess(spec)
    asked = answered = wrong = struck = 0
    seen = set()
    while struck < kills or executor.in_flight:
        while struck < kills and executor.in_flight < executor.capacity:
            version = asked // 10
            executor.publish(version, np.float32(version))
            executor.request(asked)
            asked += 1
        if struck < kills:
            strike()
            struck += 1
            print(f"{struck} kills, {answered} of {asked} requests answered", file=sys.stderr, flush=True)
        for _ in range(min(executor.in_flight, 3 if struck < kills else executor.capacity)):
            batch = executor.next()
            expected.publish(batch.version, np.float32(batch.version))
            expected.request(batch.index)
            made_here = expected.next()
            right = (batch.version, batch.index) == (answered // 10, answered)
            wrong += not (right and same_bits(batch.value, made_here.value))
            seen.add(batch.index)
            answered += 1
    assert answered == asked
    return {
        "kills": struck,
        "requests": asked,
        "lost": asked - len(seen),
        "duplicated": answered - len(seen),
        "wrong": wrong,
    }


def actors(_cluster: TestCluster, kills: int, seed: int) -> dict:
    rng = random.Random(seed)
    spec = WorkSpec("tests.programs.recipes:counted", {"pause": 0.05})
    with Ray(spec, num_workers=4, capacity=16) as executor:

        def strike():
            time.sleep(rng.uniform(0, 0.3))
            kill_one(rng, "_Actor")

        return {"actors": 4, **under_fire(executor, spec, kills, strike)}


def nodes(cluster: TestCluster, kills: int, seed: int) -> dict:
    """Batches are large enough to stay in a node's store, and to be lost with it."""
    rng = random.Random(seed)
    spec = WorkSpec("tests.programs.recipes:counted", {"pause": 0.05, "size": 50_000})
    with Ray(spec, num_workers=4, capacity=16) as executor:

        def strike():
            time.sleep(rng.uniform(0, 0.5))
            cluster.kill_node(rng)

        return {"nodes": 2, "actors": 4, **under_fire(executor, spec, kills, strike)}


def learner(_cluster: TestCluster, kills: int, seed: int, folder: str) -> dict:
    """Killed at random moments after each has trained for a while; the same bits as a learner that was not."""
    rng = random.Random(seed)
    steps = 60 * kills
    settings = {"folder": str(Path(folder) / "killed"), "steps": steps, "pause": 0.02}
    trained = Learner(WorkSpec("tests.programs.training:learn", settings))
    done = 0
    while done < kills and not trained.done():
        before = newest(settings["folder"])
        while newest(settings["folder"]) <= before and not trained.done():
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 0.3))
        kill_one(rng, "_LearnerActor")
        done += 1
    result = trained.result()
    trained.close()
    alone = training.learn(str(Path(folder) / "alone"), steps, 0.0)
    files = [Path(folder) / name / f"step-{steps:010d}" / "state.safetensors" for name in ("killed", "alone")]
    same = files[0].read_bytes() == files[1].read_bytes()
    return {"kills": done, "steps": result, "of": alone, "bit-identical": same}


def brief(cluster: TestCluster, folder: str) -> dict:
    told = {"bits": bits(cluster), "actors": actors(cluster, 2, 0)}
    return {**told, "nodes": nodes(cluster, 1, 0), "learner": learner(cluster, 1, 0, folder)}


def newest(folder: str) -> int:
    from coulda.trainer import checkpoint_steps

    return max(checkpoint_steps(Path(folder)), default=0)


COMMANDS = {"bits": bits, "actors": actors, "nodes": nodes, "learner": learner, "brief": brief}

if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    arguments = [int(argument) if argument.isdigit() else argument for argument in rest]
    with TestCluster() as cluster:
        print(json.dumps(COMMANDS[command](cluster, *arguments)), flush=True)
