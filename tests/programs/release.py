"""What a release must pass: the wheel in clean environments, for each Python, and each extra by itself.

    python tests/programs/release.py 3.11 3.12 3.13

Each is `python3.11` and so on of the PATH. Environments are made in `.cache/release`, and anew each time. Ray is tried
in a network of its own (`unshare`), since it listens on all addresses.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".cache" / "release"
EXTRAS = ("plots", "sokoban", "minari", "tables", "onnx", "mcmc", "mcts", "ray", "tensorboard")
TESTS = ("test_scm_laws", "test_pomdp_laws", "test_evaluation_estimators", "test_evaluation_results", "test_storage")
ALONE = ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
WORLD = """
from coulda import collect
from coulda.environments import tiger
from coulda.episodes import write_log
from coulda.policies import UniformPolicy
import jax

model, policy = tiger(horizon=3, reparameterization="gumbel_max"), UniformPolicy(3)
if __name__ == "__main__":
    write_log("log", collect(jax.random.key(0), model, policy, 100))
"""


def main(pythons: list[str]) -> None:
    """All of it; stops at the first that fails."""
    shutil.rmtree(PLACE, ignore_errors=True)
    builder = environment(sys.executable, "builder", "build")
    wheel = PLACE / "wheel"
    run(builder, "-m", "build", "--wheel", "--outdir", wheel, ROOT)
    [built] = wheel.glob("*.whl")
    for python in pythons:
        newcomer(environment(f"python{python}", f"wheel-{python}", built))
        tested(environment(f"python{python}", f"source-{python}", f"{ROOT}[tables]", "pytest", "hypothesis"))
    for extra in EXTRAS:
        alone(environment(sys.executable, extra, f"{built}[{extra}]"), extra)


def environment(python: str, name: str, *packages: Path | str) -> Path:
    """The Python of a new environment that has these packages."""
    folder = PLACE / name
    subprocess.run([python, "-m", "venv", folder], check=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", *packages)
    return folder / "bin" / "python"


def newcomer(python: Path) -> None:
    """What somebody does first: `coulda doctor`, README's Python, and a table of a log."""
    folder = python.parents[1]
    text = (ROOT / "README.md").read_text()
    (folder / "readme.py").write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)))
    (folder / "world.py").write_text(WORLD)
    run(python, "-m", "coulda", "doctor")
    run(python, "readme.py")
    run(python, "world.py")
    run(python, "-m", "coulda", "evaluate", "log", "--model", "world.py:model", "--policy", "world.py:policy")


def tested(python: Path) -> None:
    """A part of the tests that goes through all rooms below evaluation."""
    files = [ROOT / "tests" / f"{name}.py" for name in TESTS]
    run(python, "-m", "pytest", "--rootdir", ROOT, *files)


def alone(python: Path, extra: str) -> None:
    """What an extra is for works; what another is for works by chance, or names what is missing."""
    before = ALONE if extra == "ray" else []
    said = run(python, ROOT / "tests" / "programs" / "extras.py", python.parents[1], before=before)
    for name, found in json.loads(said.splitlines()[-1]).items():
        if found != "works" and (name == extra or f"coulda[{name}]" not in found):
            sys.exit(f"with [{extra}] alone, {name}: {found}")


def run(python: Path, *arguments: Path | str, before: list[str] = []) -> str:  # noqa: B006
    """What it prints, which is also shown; in its environment's folder, and with nothing of this process's."""
    print("$", *arguments, flush=True)
    named = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX", "XLA"))}
    command = [*before, python, *arguments]
    done = subprocess.run(command, cwd=python.parents[1], env=named, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:] or ["3.11", "3.12", "3.13"])
