"""Strict by default: ranks and dtypes never promote in silence, and compiled programs are kept between runs."""

import ctypes
import gc
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"

# Tests compile many small programs and run each for milliseconds, so that most of their time is LLVM's. These are read
# when JAX is imported, and are in the environment so that the interpreters that tests start have them too.
# JAX_DISABLE_MOST_OPTIMIZATIONS=0 runs the programs that users get, in 2.5 times the time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
# Small programs too: the other worker, or this one after it forgot them, need not compile them again.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1":
    # The newer way of emitting loops goes through MLIR, which takes half as long again and a quarter more memory.
    # The older one fuses more operations; without fused multiply-adds the same number is so in every program.
    isa = " --xla_cpu_max_isa=AVX" if platform.machine() in ("x86_64", "AMD64") else ""
    # Programs are split into 32 parts for LLVM's threads; the small ones here compile sooner in one.
    flags = " --xla_cpu_parallel_codegen_split_count=1"
    if version("jaxlib").startswith("0.10."):  # later ones have the newer way alone
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flags + isa

# Containers often ask for no bytecode beside the sources; without any, every interpreter compiles JAX's again.
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(ROOT / ".cache" / "bytecode")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

collect_ignore = ["programs/rlax_vtrace.py"]  # needs rlax, which only made a fixture

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Traced programs are many small objects that live on: to look through all of them for garbage, as often as Python does
# by itself, is a tenth of the time.
gc.set_threshold(200_000, 50, 100)

jax.devices()  # here and now: no test is given other devices by a command that ran before it

hypothesis.settings.register_profile("coulda", deadline=None, derandomize=True, print_blob=True, max_examples=50)
hypothesis.settings.load_profile("coulda")

MAX_MEMORY = 1_200_000_000
MIN_GROWTH = 150_000_000
few_programs_at = MAX_MEMORY


@pytest.fixture(autouse=True)
def few_programs():
    """Forget compiled programs where much memory is in use after a test: most is theirs, a megabyte and more each.

    They also have memory maps of their own, and where no more are to be had (the kernel's limit is 65,530 a process)
    XLA:CPU ends in a segmentation fault. What remains is not the programs', so that they are forgotten again only after
    they have grown: each time costs their compilation.
    """
    global few_programs_at
    yield
    if _resident_memory() > few_programs_at:
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # glibc otherwise keeps what was freed
            trim(0)
        few_programs_at = max(MAX_MEMORY, _resident_memory() + MIN_GROWTH)


def _resident_memory() -> int:
    """In bytes; nothing where the system does not say."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statistics.exists() else 0


WARM = """
import jax
from coulda.environments.sokoban import generate, solve, tabulate
levels = generate(jax.random.key(0), 2, 7, 7, 1)
solve(levels, 1)
tabulate(levels, 1)
"""


def pytest_configure(config: pytest.Config) -> None:
    """Compile what Numba compiles once, before there are workers that would each do it: it is kept on the disk."""
    is_worker, workers = hasattr(config, "workerinput"), getattr(config.option, "numprocesses", None)
    if workers and not is_worker and not config.option.collectonly:
        subprocess.run([sys.executable, "-c", WARM], check=True)
