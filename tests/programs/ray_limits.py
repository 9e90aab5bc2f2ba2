"""What Ray must not do: try for ever, wait for ever, or let anybody in. Prints one line of JSON.

Run it where the network is its own, such as in `unshare -n` with `lo` up.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import jax.numpy as jnp  # noqa: E402

from coulda.errors import CouldaError  # noqa: E402
from coulda.executors import WorkSpec  # noqa: E402
from coulda.executors.ray_cluster import Ray, connect  # noqa: E402

STRANGER = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except BaseException as error:
    sys.exit(f"{type(error).__name__}")
print(ray.nodes() and "let in")
"""


def refused(spec: WorkSpec, index: int, **limits) -> dict:
    """What is said of a batch that cannot be made; and that the next one can."""
    start = time.monotonic()
    with Ray(spec, num_workers=1, **limits) as executor:
        executor.publish(0, jnp.float32(2))
        executor.request(index)
        try:
            executor.next()
            told = "it was made"
        except CouldaError as error:
            told = str(error)
    return {"told": told, "seconds": round(time.monotonic() - start, 1)}


def stranger(address: str, token: str) -> str:
    """What happens to another process with this token, or with none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    mode = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    environment |= {**mode, "HOME": tempfile.mkdtemp()}
    command = [sys.executable, "-c", STRANGER, address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    except subprocess.TimeoutExpired:
        return "not let in within two minutes"
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def nobody() -> dict:
    """An address with nothing behind it."""
    start = time.monotonic()
    try:
        connect("127.0.0.1:1", num_cpus=1)
        told = "connected"
    except CouldaError as error:
        told = str(error)
    return {"told": told, "seconds": round(time.monotonic() - start, 1)}


def main() -> dict:
    assert connect(None, num_cpus=1)
    told: dict = {"token": len(os.environ["RAY_AUTH_TOKEN"])}
    with tempfile.TemporaryDirectory() as marks:
        spec = WorkSpec("tests.programs.recipes:dying", {"folder": marks, "deaths": 100})
        told["dying"] = {**refused(spec, 3, max_deaths=3), "deaths": len(list(Path(marks).iterdir()))}
    told["hanging"] = refused(WorkSpec("tests.programs.recipes:hanging"), 1, timeout=20)
    import ray

    address = ray.get_runtime_context().gcs_address
    tokens = {"none": "", "another": "0" * 64, "the right one": os.environ["RAY_AUTH_TOKEN"]}
    told["strangers"] = {name: stranger(address, token) for name, token in tokens.items()}
    ray.shutdown()
    return {**told, "nobody": nobody()}


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
