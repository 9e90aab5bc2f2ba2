"""What the fuzzers share: a case, and values that no file should hold."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A file that was made, how it is read, and whether what was read is what it says."""

    name: str
    read: Callable[[], Any]
    same: Callable[[Any], bool]


Make = Callable[[Random, Path], Case]
"""(chance, empty folder) -> a case in it."""

NUMBERS = (
    "0", "-1", "1", "2", "7", "10000", "16777217", "2147483648", "4294967296", "1000000000000", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "100000000000000000000", "1e308", "1e400", "-0.5", "0.5", "NaN",
    "Infinity", "-Infinity", "1e-300",
)  # fmt: skip
"""As JSON has them, and as it does not."""
OTHERS = (
    "null", "true", '"x"', '""', '"\\u0000"', '"\\u001b[31m"', '"__proto__"', '"../../etc/passwd"', '"inf"', '"1e400"',
    '"nan"', '"float999"', '"object"', "[]", "{}", "[0]", '[["a"]]', '{"type": "discrete"}', "[1, 2, 3, 4, 5]",
    "[" * 10_000 + "]" * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000, '"' + "y" * 1_000_000 + '"',
)  # fmt: skip


def npz(arrays: dict[str, Any], compression: int = zipfile.ZIP_STORED) -> bytes:
    """As `np.savez`, but arrays may be bytes, which are taken as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else npy(array))
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    """One array, objects pickled as NumPy does."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], kind: str = "<f8", rest: bytes = b"\0" * 64) -> bytes:
    """An array that says to be larger than it is."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + rest


def spoiled(rng: Random, array: np.ndarray) -> tuple[str, Any]:
    """An array in which something is wrong, and what."""
    if array.ndim == 0:
        name, value = spoiled(rng, array[None])
        return name, np.asarray(value[0]) if isinstance(value, np.ndarray) and value.shape[:1] == (1,) else value
    value = array.copy()
    float_ = array.dtype if array.dtype.kind == "f" else np.dtype(float)
    at = tuple(rng.randrange(n) for n in array.shape) if array.size else ()
    ways: dict[str, Callable[[], Any]] = {
        "a NaN": lambda: _put(value.astype(float_), at, np.nan),
        "an infinity": lambda: _put(value.astype(float_), at, rng.choice([np.inf, -np.inf])),
        "a half": lambda: _put(value.astype(float_), at, 0.5),
        "a two": lambda: _put(value.astype(int), at, 2),
        "a minus one": lambda: _put(value.astype(int), at, -1),
        "beyond 32 bits": lambda: _put(value.astype(np.int64), at, rng.choice([2**31, 2**40, 2**62, -(2**31) - 1])),
        "beyond 24 bits": lambda: _put(value.astype(np.int64), at, 2**24 + 1),
        "large numbers": lambda: _put(value.astype(float), at, rng.choice([1e39, 1e300, -1e300])),
        "tiny numbers": lambda: _put(value.astype(float), at, rng.choice([1e-300, 5e-324, 1e-40])),
        "unsigned": lambda: _put(value.astype(np.uint64), at, np.uint64(2**63 + 1)),
        "text": lambda: value.astype(str),
        "bytes": lambda: value.astype("S8"),
        "complex numbers": lambda: value.astype(complex),
        "dates": lambda: value.astype("M8[s]"),
        "records": lambda: np.zeros(array.shape, [("a", "f4"), ("b", "i4")]),
        "half precision": lambda: value.astype(np.float16),
        "one row less": lambda: value[:-1],
        "one row more": lambda: np.concatenate([value, value[:1]]),
        "no rows": lambda: value[:0],
        "one more axis": lambda: value[..., None, None],
        "no axis": lambda: np.asarray(value.flat[0]) if value.size else np.zeros(()),
        "rows in another order": lambda: value[::-1],
        "objects": lambda: value.astype(object),
        "a header of a terabyte": lambda: npy_header((2**37,)),
        "a header beyond 64 bits": lambda: npy_header((2**40, 2**40)),
        "a negative header": lambda: npy_header((-1,)),
        "no array": lambda: rng.randbytes(50),
    }
    name = rng.choice(sorted(ways))
    return name, ways[name]()


def _put(array: np.ndarray, at: tuple[int, ...], value: Any) -> np.ndarray:
    array[at] = value
    return array
