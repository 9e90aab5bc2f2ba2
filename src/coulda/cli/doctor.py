"""`coulda doctor`: what is installed, where it runs, and whether it works; to paste into a bug report."""

import os
import platform
import re
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

import jax
import numpy as np

from coulda.environments import tiger
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.evaluation import OnScenarios, compare, model_free
from coulda.hindsight import Exact
from coulda.policies import UniformPolicy

CORE = ("coulda", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "gymnasium", "msgspec", "safetensors")
EPISODES = 500


@dataclass(frozen=True)
class Doctor:
    """Say what is installed, where programs run and are kept, and test in ten seconds whether it works."""

    def run(self) -> None:
        """Print it; an error where the self-test fails."""
        print(f"python      {sys.version.split()[0]}, {platform.platform()}")
        for name in CORE:
            print(f"{name:<12}{installed(name)}")
        for extra, packages in extras().items():
            missing = [package for package in packages if installed(package) == "missing"]
            said = f"missing {', '.join(missing)}; pip install 'coulda[{extra}]'" if missing else "installed"
            print(f"[{extra}]".ljust(15) + said)
        devices = ", ".join(f"{device.platform} {device.device_kind}" for device in jax.devices())
        print(f"devices     {devices}; {os.cpu_count()} cores")
        print(f"programs    {os.environ.get('JAX_COMPILATION_CACHE_DIR', 'not kept')}")
        start = time.perf_counter()
        print(f"self-test   {self_test()}, {time.perf_counter() - start:.1f} s")


COMMANDS = Doctor


def installed(package: str) -> str:
    """Its version, or "missing"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def extras() -> dict[str, list[str]]:
    """The packages of each optional extra; `all` only gathers those of the others."""
    found: dict[str, list[str]] = {}
    for requirement in requires("coulda") or []:
        package, _, condition = requirement.partition(";")
        extra = condition.partition("extra ==")[2].strip(" '\"")
        if extra not in ("", "all"):
            found.setdefault(extra, []).append(re.split(r"[\[<>=~! ]", package)[0])
    return found


def self_test() -> str:
    """Evaluate a policy whose value is known, by every method, on episodes of the tiger.

    Listening or opening a door at random, three times: -1/3 and two doors of which one has the tiger, (10 - 100) / 3.
    """
    model = tiger(horizon=3, reparameterization="gumbel_max")
    log = collect(jax.random.key(0), model, UniformPolicy(3), EPISODES)
    table = compare(
        jax.random.key(1), log, {"uniform": UniformPolicy(3)}, [*model_free(log), OnScenarios(model, Exact(model))]
    )
    truth, rows = 3 * (-1 + 10 - 100) / 3, table.estimates["uniform"]
    for name, row in rows.items():
        # Four standard errors of the mean return, 84 an episode: a false alarm of one method in 16,000.
        if row.value is None or not np.abs(row.value - truth) < 4 * 84 / np.sqrt(EPISODES):
            raise CouldaError(
                f"the self-test fails: {name} says {row.value}, and the truth is {truth}; please report it"
            )
    return f"{len(rows)} methods agree with the truth"
