"""Checkpoints and logs of episodes, damaged in every way we could think of: each must be refused.

python corruption.py TRIALS SEED    prints one line of JSON; half of the trials are checkpoints, half logs
"""

import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402

from coulda.episodes import collect  # noqa: E402
from coulda.episodes.files import open_log, write_log  # noqa: E402
from coulda.episodes.validation import LogError  # noqa: E402
from coulda.storage import ArtifactError  # noqa: E402
from coulda.trainer import load_checkpoint  # noqa: E402
from coulda.trainer.checkpoints import save_checkpoint  # noqa: E402
from tests.programs import training  # noqa: E402
from tests.triage import BEHAVIOR, triage  # noqa: E402

SLOW = 10.0
"""Seconds after which a reader counts as hanging; an undamaged one takes some milliseconds."""


def flip(rng: random.Random, file: Path, _donor: Path) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def truncate(rng: random.Random, file: Path, _donor: Path) -> None:
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def lengthen(rng: random.Random, file: Path, _donor: Path) -> None:
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randrange(1, 64)))


def swap_part(_rng: random.Random, file: Path, donor: Path) -> None:
    """The part of the same name from another artifact of the same kind, which is whole."""
    file.write_bytes((donor / file.name).read_bytes())


def swap_names(_rng: random.Random, file: Path, _donor: Path) -> None:
    """Two files of one artifact change places."""
    other = next(path for path in sorted(file.parent.iterdir()) if path != file)
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)


def remove(_rng: random.Random, file: Path, _donor: Path) -> None:
    file.unlink()


def noise(rng: random.Random, file: Path, _donor: Path) -> None:
    file.write_bytes(rng.randbytes(file.stat().st_size))


def zero(rng: random.Random, file: Path, _donor: Path) -> None:
    """A block that never reached the disk."""
    data = bytearray(file.read_bytes())
    start = rng.randrange(len(data))
    while not any(data[start : start + 512]):
        start = rng.randrange(len(data))
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    file.write_bytes(data)


DAMAGES = (flip, truncate, lengthen, swap_part, swap_names, remove, noise, zero)


def attack(rng: random.Random, good: Path, donor: Path, read: Callable[[Path], None], work: Path) -> tuple[str, str]:
    """Damage a copy and read it: what was done, and what came of it."""
    bad = work / good.name
    shutil.copytree(good, bad)
    damage = rng.choice(DAMAGES)
    damage(rng, rng.choice(sorted(bad.iterdir())), donor)
    start = time.monotonic()
    try:
        read(bad)
        outcome = "accepted"
    except (ArtifactError, LogError):
        outcome = "refused"
    except Exception as error:
        outcome = f"crashed with {type(error).__name__}"
    shutil.rmtree(bad)
    return damage.__name__, "hung" if time.monotonic() - start > SLOW else outcome


def main(trials: int, seed: int) -> dict:
    rng, outcomes, damages = random.Random(seed), Counter(), Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        good, donor, work = folder / "good", folder / "donor", folder / "work"
        work.mkdir()
        state = training.initial_state()
        for path, scale in ((good, 1.0), (donor, 2.0)):
            scaled = {**state, "weights": state["weights"] * scale}
            save_checkpoint(path, 4, jax.random.key(7), scaled, {"loss": scale}, {"rate": scale})
        for path, number in ((good / "log", 0), (donor / "log", 1)):
            log = collect(jax.random.key(number), triage(), BEHAVIOR, 20)
            write_log(path, [log[:8], log[8:]])
        kinds = [
            ("checkpoint", "step-0000000004", lambda path: load_checkpoint(path.parent, state)),
            ("log", "log", lambda path: open_log(path).read()),
        ]
        for _, name, read in kinds:
            read(good / name)  # the twin: undamaged, they are read
        for trial in range(trials):
            kind, name, read = kinds[trial % 2]
            damage, outcome = attack(rng, good / name, donor / name, read, work)
            outcomes[outcome] += 1
            damages[f"{kind}: {damage}"] += 1
    return {"trials": trials, "outcomes": dict(outcomes), "damages": dict(sorted(damages.items()))}


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))), flush=True)
