"""Strict by default: ranks and dtypes never promote in silence, and compiled programs are kept between runs."""

import os
from pathlib import Path

import hypothesis
import jax
import pytest

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"

collect_ignore = ["programs/rlax_vtrace.py"]  # needs rlax, which only made a fixture

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
# Tests compile many small programs and run each for milliseconds: this makes them 2.5 times quicker.
# JAX_DISABLE_MOST_OPTIMIZATIONS=0 runs them with the programs that users get.
if "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ:
    jax.config.update("jax_disable_most_optimizations", True)

jax.devices()  # here and now: no test is given other devices by a command that ran before it

hypothesis.settings.register_profile("coulda", deadline=None, derandomize=True, print_blob=True, max_examples=50)
hypothesis.settings.load_profile("coulda")


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Forget compiled programs before the kernel's limit of memory maps (65,530 a process) is reached.

    Every program of XLA:CPU has maps of its own, and where no more are to be had it ends in a segmentation fault.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
