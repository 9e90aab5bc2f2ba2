"""Artifacts and tables made to harm, thousands of them: each must be refused, or read as what it says.

python fuzz.py TRIALS SEED               prints one line of JSON: outcomes of all kinds of files, in equal shares
python fuzz.py KIND FIRST LAST SEED      a child's work: one line of JSON per trial

A trial is a pure function of kind, seed and number. Whoever reads works in a process of its own with limited memory;
what it takes, and for how long, is measured.
"""

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from coulda.errors import CouldaError  # noqa: E402
from tests.programs.fuzz_arrays import ARRAYS  # noqa: E402
from tests.programs.fuzz_artifacts import ARTIFACTS  # noqa: E402
from tests.programs.fuzz_cases import Case  # noqa: E402
from tests.programs.fuzz_tables import TABLES  # noqa: E402

KINDS = ARTIFACTS | TABLES | ARRAYS
SLOW, LONG = 10.0, 60.0
"""Seconds of work, and of waiting, after which a reader hangs; an undamaged file takes some milliseconds."""
MEMORY = 2**30
"""Bytes beyond those at the start that a reader may have."""
RESERVED = 4 * MEMORY
"""Bytes that it may ask for: libraries reserve some that they never touch."""


class Hung(BaseException):
    """Raised by the clock; not an `Exception`, so that no reader takes it for one of its own."""


def outcome(case: Case) -> str:
    """What came of reading it."""

    def hang(*_: Any) -> None:
        raise Hung

    with _clock(signal.SIGPROF, signal.ITIMER_PROF, SLOW, hang), _clock(signal.SIGALRM, signal.ITIMER_REAL, LONG, hang):
        try:
            found = case.read()
        except CouldaError:
            return "refused"
        except Hung:
            return "hung"
        except Exception as error:
            return f"crashed with {type(error).__name__}"
    return "accepted as it is" if case.same(found) else "accepted with other content"


@contextmanager
def _clock(number: int, timer: int, seconds: float, ring: Callable[..., None]) -> Iterator[None]:
    """Ring when so many seconds have passed."""
    before = signal.signal(number, ring)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)


def trials(kind: str, numbers: range, seed: int) -> Iterator[dict[str, Any]]:
    """Name and outcome of trials of one kind, in this process, with what memory it has now and a gigabyte."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with tempfile.TemporaryDirectory() as temporary:
        make = KINDS[kind](Path(temporary) / "good")
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + RESERVED, limits[1]))
        try:
            for number in numbers:
                bad = Path(temporary) / "bad"
                bad.mkdir()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    case = make(random.Random(f"{kind} {seed} {number}"), bad)
                    _forget_peak()
                    before = _memory("VmRSS")
                    told = {"kind": kind, "number": number, "case": case.name, "outcome": outcome(case)}
                    if _memory("VmHWM") - before > MEMORY:
                        told["outcome"] = "took too much memory"
                yield told
                shutil.rmtree(bad)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)


def in_children(kind: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """The same in other processes: one that dies over a trial is followed by the next."""
    number = 0
    while number < count:
        command = [sys.executable, __file__, kind, str(number), str(count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
        for line in done.stdout.splitlines():
            yield json.loads(line)
            number += 1
        if number < count:
            yield {"kind": kind, "number": number, "case": "?", "outcome": f"died: {done.stderr[-200:]}"}
            number += 1


def summary(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by outcome and by kind; and every trial that came to a bad end."""
    good = ("refused", "accepted as it is")
    kinds = {kind: dict(Counter(one["outcome"] for one in told if one["kind"] == kind)) for kind in KINDS}
    return {
        "trials": len(told),
        "outcomes": dict(Counter(one["outcome"] for one in told)),
        "kinds": {kind: counts for kind, counts in kinds.items() if counts},
        "cases": dict(sorted(Counter(one["case"] for one in told).items())),
        "bad": [one for one in told if one["outcome"] not in good],
    }


def _memory(name: str) -> int:
    """Bytes of this process, by the kernel's name for them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak is then that of all trials so far


def main(arguments: list[str]) -> None:
    if arguments[0] in KINDS:
        kind, first, last, seed = arguments[0], *map(int, arguments[1:])
        for told in trials(kind, range(first, last), seed):
            print(json.dumps(told), flush=True)
        return
    count, seed = map(int, arguments)
    each = -(-count // len(KINDS))
    told = [one for kind in KINDS for one in in_children(kind, each, seed)]
    print(json.dumps({"seed": seed, **summary(told)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
