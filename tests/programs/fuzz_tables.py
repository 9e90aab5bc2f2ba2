"""Tables in which something is wrong: CSV, Parquet, the npz of an MDPDataset, Minari.

What is accepted is held against a second reader, which is slow, knows nothing of ours, and takes every cell as it is.
"""

import csv
import io
import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from gymnasium import spaces
from pandas._libs.parsers import STR_NA_VALUES

from coulda.episodes import EpisodeLog, read_any, write_any
from coulda.episodes.log import Schema
from coulda.episodes.validation import checked_log
from tests.programs.fuzz_cases import Case, Make, npy_header, npz, spoiled

Rows = list[list[Any]]

CELLS = (
    "", "0", "1", "2", "-1", "0.5", ".5", "NaN", "nan", "inf", "-inf", "1e300", "1e-300", "5e-324", "1e39", "2147483648",
    "4611686018427387904", "9223372036854775808", "99999999999999999999999", "16777217", "4000000000000000000",
    "1.0000001", "1.1", "1e0", "0x10", "1_000", "true", "False", "yes", "t", "left", "a b", '"', "'", "\x00", "\x1b[31m",
    "[/bold]", "__proto__", "2020-01-01", "1,5", "١", "½", "None", "N/A", " 1", "1 ", "+1", "--1", "1e", "0.1.2", "é",
)  # fmt: skip
FLAGS = {"true": 1, "false": 0, "1": 1, "0": 0, "1.0": 1, "0.0": 0}


# ---- a good log, and its table as text -----------------------------------------------------------------


def good_log(rng: Random) -> EpisodeLog:
    """Nine short episodes, of numbered observations or of vectors."""
    draw = np.random.default_rng(rng.randrange(2**32))
    lengths = draw.integers(1, 5, 9)
    steps, rows = int(lengths.sum()), int(lengths.sum()) + len(lengths)
    discrete = rng.random() < 0.5
    seen = spaces.Discrete(3) if discrete else spaces.Box(-np.inf, np.inf, (2,))
    observation = draw.permutation(np.arange(rows) % 3) if discrete else draw.normal(size=(rows, 2)).astype(np.float32)
    action = draw.permutation(np.arange(steps) % 2)
    log_prob = np.log(draw.uniform(0.2, 0.9, steps)).astype(np.float32)
    reward = draw.normal(size=steps).astype(np.float32)
    return checked_log(
        Schema(seen, spaces.Discrete(2)), observation, action, reward, lengths, draw.random(9) < 0.7, log_prob
    )


def good_rows(rng: Random, folder: Path) -> tuple[EpisodeLog, list[str], Rows]:
    """A log, with its header and rows as CSV has them; its columns beyond the rewards may be missing."""
    log = good_log(rng)
    write_any(folder / "good.csv", log)
    (header, *rows) = csv.reader((folder / "good.csv").read_text().splitlines())
    drop = {name for name in ("probability", "truncated", "rows_in_file") if rng.random() < 0.3}
    if rng.random() < 0.3:
        drop |= {"terminated", "truncated"}
    keep = [i for i, name in enumerate(header) if name not in drop]
    return log, [header[i] for i in keep], [[row[i] for i in keep] for row in rows]


# ---- the second reader ---------------------------------------------------------------------------------


class NoTableError(Exception):
    """The cells have no one meaning."""


def meaning(header: list[str], rows: Rows) -> list[dict[str, Any]]:
    """Episodes in order, each with the cells of its steps by field, and its last observation; `NoTableError` else."""
    if len(set(header)) < len(header) or any(len(row) > len(header) for row in rows) or not rows:
        raise NoTableError
    named = [dict(zip(header, row, strict=False)) for row in rows]
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in named:
        label = _label(row["episode"], named)
        groups.setdefault(label, []).append(row)
    return [_episode(sorted(group, key=lambda row: _whole(row["step"])), header) for group in groups.values()]


def _episode(rows: list[dict[str, Any]], header: list[str]) -> dict[str, Any]:
    if [_whole(row["step"]) for row in rows] != list(range(len(rows))):
        raise NoTableError
    fields = {name: _columns(name, header) for name in ("observation", "action", "reward", "probability")}
    closing = all(_missing(rows[-1].get(name)) for name in ("action", "reward"))
    steps = rows[:-1] if closing else rows
    flags = {name: [_flag(row.get(name)) for row in steps] for name in ("terminated", "truncated") if name in header}
    if any(any(one[:-1]) for one in flags.values()):
        raise NoTableError
    ends = {name: one[-1] for name, one in flags.items()}
    if len(ends) == 2 and not any(ends.values()):
        raise NoTableError
    terminated = ends.get("terminated", 1 - ends["truncated"] if "truncated" in ends else 1)
    taken = {name: [[row.get(one) for one in fields[name]] for row in steps] for name in ("action", "reward")}
    if any(_missing(cell) for cells in taken.values() for row in cells for cell in row):
        raise NoTableError
    seen = [[row.get(one) for one in fields["observation"]] for row in (rows if closing else [*rows, rows[-1]])]
    chance = [row.get("probability") if fields["probability"] else None for row in steps]
    return {**taken, "observation": seen, "probability": chance, "terminated": bool(terminated)}


def _columns(name: str, header: list[str]) -> list[str]:
    numbered = [one for one in header if one.startswith(f"{name}_") and one[len(name) + 1 :].isdigit()]
    if name in header and numbered:
        raise NoTableError
    if sorted(numbered) != [f"{name}_{i}" for i in range(len(numbered))]:
        raise NoTableError
    if name not in header and not numbered and name != "probability":
        raise NoTableError
    return [name] if name in header else sorted(numbered)


def _missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell)) or cell in STR_NA_VALUES


def _number(cell: Any) -> float:
    if isinstance(cell, bool | int | float | np.generic):
        return float(cell)
    if isinstance(cell, str) and cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise NoTableError from None


def _whole(cell: Any) -> int:
    number = _number(cell)
    if not number.is_integer():
        raise NoTableError
    return int(number)


def _label(cell: Any, rows: list[dict[str, Any]]) -> Any:
    if _missing(cell):
        raise NoTableError
    try:
        for row in rows:
            _number(row["episode"])
    except NoTableError:
        return cell
    return _number(cell)


def _flag(cell: Any) -> int:
    text = str(cell).strip().lower()
    if text not in FLAGS:
        raise NoTableError
    return FLAGS[text]


def agrees(log: EpisodeLog, expected: list[dict[str, Any]]) -> bool:
    """Whether the log says of every step what the cells do."""
    if len(log) != len(expected):
        return False
    schema = log.schema
    for i, (mine, theirs) in enumerate(zip(log, expected, strict=True)):
        if len(mine.reward) != len(theirs["reward"]) or bool(log.terminated[i]) != theirs["terminated"]:
            return False
        chance = [math.nan if _missing(cell) else math.log(_number(cell)) for cell in theirs["probability"]]
        if not np.allclose(np.asarray(mine.log_prob, float), chance, rtol=1e-5, atol=1e-6, equal_nan=True):
            return False
        fields = (
            (mine.reward[:, None], theirs["reward"], ()),
            (_wide(mine.action), theirs["action"], schema.action_names),
            (_wide(mine.observation), theirs["observation"], schema.observation_names),
        )
        if not all(_same_cells(*field) for field in fields):
            return False
    return True


def _wide(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


def _same_cells(values: np.ndarray, cells: Rows, names: tuple[str, ...]) -> bool:
    rows = list(zip(values, cells, strict=True)) if len(values) == len(cells) else [(np.zeros(0), [0])]
    return all(_same_row(value, row, names) for value, row in rows)


def _same_row(value: np.ndarray, row: list[Any], names: tuple[str, ...]) -> bool:
    if len(value) == 1 and len(row) == 1 and names and np.issubdtype(value.dtype, np.integer):
        label, cell = names[int(value[0])], row[0]
        return str(cell) == label or str(cell).lower() == label.lower() == str(bool(_number(cell))).lower()
    numbers = [math.nan if _missing(cell) else _try(cell) for cell in row]
    if None in numbers:  # text: as many numbers as there are categories, one of them 1
        return sum(one is None for one in numbers) <= np.nansum(np.asarray(value, float) == 1)
    if len(value) > len(row):  # text in other rows
        return any(_missing(cell) for cell in row) or all(_try(cell) is not None for cell in row)
    return np.allclose(np.asarray(value, float), np.asarray(numbers, float), rtol=1e-6, atol=1e-45, equal_nan=True)


def _try(cell: Any) -> float | None:
    try:
        return _number(cell)
    except NoTableError:
        return None


def judged(header: list[str], rows: Rows) -> Callable[[EpisodeLog], bool]:
    def same(log: EpisodeLog) -> bool:
        try:
            return agrees(log, meaning(header, rows))
        except NoTableError:
            return False

    return same


# ---- CSV and Parquet -----------------------------------------------------------------------------------


def changed(rng: Random, header: list[str], rows: Rows) -> tuple[str, list[str], Rows]:
    """One thing wrong in a header or in rows, or only in another order."""
    header, rows = list(header), [list(row) for row in rows]
    i, j, k = rng.randrange(len(rows)), rng.randrange(len(header)), rng.randrange(len(rows))
    name = rng.choice(("cell",) * 6 + ("header", "rows", "column", "flags", "probabilities"))
    if name == "cell":
        rows[i][j] = rng.choice(CELLS)
    elif name == "flags" and "terminated" in header:
        rows[i][header.index("terminated")] = rng.choice(("2", "-1", ".5", "NaN", "yes", "", "1", "TRUE"))
    elif name == "probabilities" and "probability" in header:
        rows[i][header.index("probability")] = rng.choice(("1e-300", "1e-40", "1.0000001", "1.1", "0", "-1", "", "x"))
    elif name == "header":
        new = (
            header[i % len(header)],
            "observation_0",
            "observation_2",
            "x_0",
            "",
            "reward_0",
            "probability_1",
            "step",
        )
        header[j] = rng.choice(new)
    elif name == "column":
        new = rng.choice((header[j], f"{header[j]}_0", "observation_5", "action_0", "note"))
        header.append(new)
        rows = [[*row, rng.choice(("0", "1", "x", "")) if i % 2 else "1"] for row in rows]
    else:
        ways: dict[str, Callable[[], Any]] = {
            "shuffled": lambda: rng.shuffle(rows),
            "one twice": lambda: rows.insert(i, list(rows[k])),
            "one less": lambda: rows.pop(i),
            "two changed places": lambda: rows[i].__setitem__(j, rows[k][j]),
            "a short row": lambda: rows[i].pop(),
            "a long row": lambda: rows[i].append("1"),
            "none": rows.clear,
            "an empty row": lambda: rows.insert(i, [""] * len(header)),
        }
        name = rng.choice(sorted(ways))
        ways[name]()
    return name, header, rows


def csv_cases(good: Path) -> Make:
    good.mkdir()

    def make(rng: Random, folder: Path) -> Case:
        log, header, rows = good_rows(rng, folder)
        path = folder / "log.csv"
        if rng.random() < 0.2:
            return cut(rng, folder / "good.csv", log)
        if rng.random() < 0.1:
            return strange(rng, path, (folder / "good.csv").read_bytes(), log)
        name, header, rows = changed(rng, header, rows)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        path.write_text(text.getvalue())
        rows = [row for row in rows if any(row)] if name == "an empty row" else rows
        return Case(name, lambda: read_any(path), judged(header, rows))

    return make


def cut(rng: Random, path: Path, log: EpisodeLog) -> Case:
    """A file that was not written to its end: to be refused, or nothing may be missing."""
    data = path.read_bytes()
    lines = [i + 1 for i, byte in enumerate(data) if byte == 10][:-1]
    at = rng.choice((rng.randrange(len(data)), rng.choice(lines), rng.choice(lines) - 1))
    path.write_bytes(data[:at])
    return Case("cut", lambda: read_any(path), lambda found: whole(found, log))


def whole(found: EpisodeLog, log: EpisodeLog) -> bool:
    """Whether every number of the log is there."""
    if len(found) != len(log) or found.num_steps != log.num_steps:
        return False
    names = ("observation", "action", "reward", "log_prob", "terminated")
    pairs = ((np.asarray(getattr(one, name), float) for one in (found, log)) for name in names)
    return all(a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs)


def strange(rng: Random, path: Path, data: bytes, log: EpisodeLog) -> Case:
    """Bytes that a table should not have, and some that it may."""
    ways = {
        "a mark of the order of bytes": b"\xef\xbb\xbf" + data,
        "lines of Windows": data.replace(b"\n", b"\r\n"),
        "16 bits": data.decode().encode("utf-16"),
        "latin": data.replace(b"reward", b"reward\xe9"),
        "a null": data[:60] + b"\0" + data[60:],
        "quotes that do not end": data[:90] + b'"' + data[90:],
        "semicolons": data.replace(b",", b";"),
        "compressed": __import__("gzip").compress(data),
        "nothing": b"",
        "a header alone": data.splitlines()[0] + b"\n",
        "one long line": b"a," * 500_000,
    }
    name = rng.choice(sorted(ways))
    path.write_bytes(ways[name])
    return Case(name, lambda: read_any(path), lambda found: whole(found, log))


def parquet_cases(good: Path) -> Make:
    good.mkdir()

    def make(rng: Random, folder: Path) -> Case:
        log, header, rows = good_rows(rng, folder)
        path = folder / "log.parquet"
        if rng.random() < 0.15:
            write_any(path, log)
            return cut(rng, path, log)
        name, header, rows = changed(rng, header, rows)
        wide = max([len(header), *map(len, rows)])
        header += [f"more_{i}" for i in range(wide - len(header))]
        rows = [[*row, *[""] * (wide - len(row))] for row in rows]
        columns = [pa.array(*_typed([row[i] for row in rows])) for i in range(wide)]
        metadata = None
        if rng.random() < 0.2 and rows:
            name, i = "a type", rng.randrange(wide)
            columns[i] = _other_type(rng, columns[i])
        if rng.random() < 0.1:
            name = "pandas' own notes"
            metadata = {b"pandas": rng.choice((b"{", b'{"index_columns": ["reward"]}', b"[]", b'{"columns": 7}'))}
        table = pa.Table.from_arrays(columns, schema=pa.schema(
            [pa.field(n, c.type) for n, c in zip(header, columns, strict=True)], metadata
        ))  # fmt: skip
        pyarrow.parquet.write_table(table, path)
        plain = [list(row) for row in zip(*[column.to_pylist() for column in columns], strict=True)]
        return Case(name, lambda: read_any(path), judged(header, plain))

    return make


def _typed(cells: list[str]) -> tuple[list[Any], Any]:
    """Values of one type: integers, numbers, flags or text."""
    values = [None if cell in STR_NA_VALUES else cell for cell in cells]
    for convert, kind in ((int, pa.int64()), (float, pa.float64())):
        try:
            found = [None if one is None else convert(one) for one in values]
            pa.array(found, kind)
            return found, kind
        except (ValueError, OverflowError, pa.ArrowInvalid):
            continue
    if all(one in (None, "True", "False") for one in values):
        return [None if one is None else one == "True" for one in values], pa.bool_()
    return values, pa.string()


def _other_type(rng: Random, column: Any) -> Any:
    values = column.to_pylist()
    numbers = [0.0 if one is None or isinstance(one, str) else float(one) for one in values]
    ways: dict[str, Callable[[], Any]] = {
        "lists": lambda: pa.array([[one] for one in numbers]),
        "ragged lists": lambda: pa.array([[one] * (i % 3) for i, one in enumerate(numbers)]),
        "structs": lambda: pa.array([{"a": one} for one in numbers]),
        "times": lambda: pa.array([int(one) for one in numbers], pa.timestamp("s")),
        "durations": lambda: pa.array([int(one) for one in numbers], pa.duration("s")),
        "decimals": lambda: pa.array(numbers).cast(pa.float32()).cast(pa.decimal128(38, 6), safe=False),
        "categories": lambda: pa.array([str(one) for one in values]).dictionary_encode(),
        "bytes": lambda: pa.array([str(one).encode() for one in values]),
        "small numbers": lambda: pa.array(np.asarray(numbers, np.float16)),
        "unsigned": lambda: pa.array([2**63 + int(abs(one)) for one in numbers], pa.uint64()),
        "nothing": lambda: pa.nulls(len(values)),
        "integers": lambda: pa.array([int(one) for one in numbers], pa.int8()),
    }
    try:
        return ways[rng.choice(sorted(ways))]()
    except (pa.ArrowInvalid, OverflowError):
        return pa.nulls(len(values))


# ---- npz and Minari ------------------------------------------------------------------------------------


def npz_cases(good: Path) -> Make:
    good.mkdir()

    def make(rng: Random, folder: Path) -> Case:
        write_any(folder / "good.npz", good_log(rng))
        arrays: dict[str, Any] = dict(np.load(folder / "good.npz"))
        which, path = rng.choice(sorted(arrays)), folder / "log.npz"
        name = rng.choice(("array",) * 6 + ("less", "more", "bomb", "terabyte", "cut", "twice"))
        data = b""
        if name == "array":
            name, arrays[which] = spoiled(rng, arrays[which])
        elif name == "less":
            del arrays[which]
        elif name == "more":
            arrays[rng.choice(("truncated", "x", "actions ", "probability_0"))] = arrays["rewards"]
        elif name == "bomb":
            data = npz(arrays | {which: b"\0" * rng.choice((2**20, 2**26))}, rng.choice((8, zipfile.ZIP_BZIP2)))
        elif name == "terabyte":
            arrays[which] = npy_header((rng.choice((2**37, 2**62, 10**12)), *arrays[which].shape[1:]))
        data = data or npz(arrays)
        if name == "twice":
            data = npz({**arrays, "again": arrays[which]}).replace(b"again", which[:5].encode())
        path.write_bytes(data[: rng.randrange(len(data))] if name == "cut" else data)
        return Case(name, lambda: read_any(path), lambda found: _same_arrays(found, arrays, name))

    return make


def _same_arrays(log: EpisodeLog, arrays: dict[str, Any], name: str) -> bool:
    """Whether what was read is in the arrays, row by row."""
    if name in ("bomb", "cut", "twice", "terabyte") or any(isinstance(one, bytes) for one in arrays.values()):
        return False
    ends = np.cumsum(log.lengths)
    flags = np.asarray(arrays["terminals"], float).ravel()
    told = {
        "rewards": log.reward,
        "actions": log.action,
        "observations": np.concatenate([np.asarray(one.observation)[:-1] for one in log]),
    }
    if "probability" in arrays:
        told["probability"] = np.exp(log.log_prob.astype(float))
    equal = lambda a, b: (
        a.size == b.size
        and np.allclose(np.ravel(a).astype(float), np.ravel(b).astype(float), rtol=1e-3, atol=1e-6, equal_nan=True)
    )
    return all(equal(value, np.asarray(arrays[key])) for key, value in told.items()) and np.array_equal(
        flags[ends - 1] != 0, log.terminated
    )


def minari_cases(good: Path) -> Make:
    good.mkdir()

    def make(rng: Random, folder: Path) -> Case:
        path = folder / "log-v0"
        write_any(path, good_log(rng))
        data, metadata = path / "data" / "main_data.hdf5", path / "data" / "metadata.json"
        edit = rng.choice((_edit_metadata, _edit_hdf5, _edit_hdf5, _edit_files))
        name = edit(rng, data, metadata)
        return Case(name, lambda: read_any(path), lambda found: _same_hdf5(found, data))

    return make


def _edit_metadata(rng: Random, data: Path, metadata: Path) -> str:
    told = json.loads(metadata.read_text())
    which = rng.choice(("total_episodes", "total_steps", "observation_space", "action_space", "data_format", "x"))
    values = (0, 1, -1, 8, 10**20, 1e300, "9", None, [], {}, True, "[" * 5000, '{"type": "Discrete", "n": 4e18}')
    spaces_ = [
        json.dumps({"type": kind, "n": n, "start": 0, "dtype": "int64"})
        for kind in ("Discrete", "MultiBinary", "Text", "Box", "Nothing")
        for n in (0, -1, 10**10, 10**20, "x", None, [10**6, 10**6])
    ]
    boxes = [
        json.dumps({"type": "Box", "dtype": "float32", "shape": shape, "low": [-1.0], "high": [1.0]})
        for shape in ([10**10], [-1], [2, 2], "x", [10**6, 10**6])
    ]
    told[which] = rng.choice((*values, *spaces_, *boxes) if "space" in which else values)
    metadata.write_text(json.dumps(told))
    return f"metadata: {which}"


def _edit_hdf5(rng: Random, data: Path, metadata: Path) -> str:
    with h5py.File(data, "a") as file:
        group = file[f"episode_{rng.randrange(9)}"]
        assert isinstance(group, h5py.Group)
        which = rng.choice(("observations", "actions", "rewards", "terminations", "truncations", "infos/probability"))
        array = np.asarray(group[which])
        del group[which]
        name = rng.choice(("array",) * 5 + ("missing", "external", "external link", "soft link", "sparse", "group"))
        if name == "array":
            name, spoilt = spoiled(rng, array)
            try:
                group[which] = np.frombuffer(spoilt, np.uint8) if isinstance(spoilt, bytes) else spoilt
            except TypeError:  # of a type that HDF5 does not have
                name = "missing"
        elif name == "external":
            group.create_dataset(which, array.shape, array.dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
        elif name == "external link":
            group[which] = h5py.ExternalLink("/etc/passwd", "/x")
        elif name == "soft link":
            group[which] = h5py.SoftLink("/episode_0/rewards")
        elif name == "sparse":
            group.create_dataset(which, (3 * 2**29,), "f8", chunks=(2**20,))  # 12 GB that are nowhere
        elif name == "group":
            group.create_group(which)
    return name


def _edit_files(rng: Random, data: Path, metadata: Path) -> str:
    file = rng.choice((data, metadata))
    name = rng.choice(("cut", "pipe", "link to nothing", "folder", "missing", "zeros", "device"))
    if name == "cut":
        os.truncate(file, rng.randrange(file.stat().st_size))
        return name
    file.unlink()
    if name == "pipe":
        os.mkfifo(file)
    elif name == "link to nothing":
        file.symlink_to("nowhere")
    elif name == "folder":
        file.mkdir()
    elif name == "zeros":
        file.write_bytes(b"\0" * 1000)
    elif name == "device":
        file.symlink_to("/dev/zero")
    return name


def _same_hdf5(log: EpisodeLog, data: Path) -> bool:
    """Whether the file says the same, episode by episode."""
    with h5py.File(data, "r") as file:
        if len(file) != len(log):
            return False
        for i, one in enumerate(log):
            group = file[f"episode_{i}"]
            assert isinstance(group, h5py.Group)
            pairs = ((one.observation, "observations"), (one.action, "actions"), (one.reward, "rewards"))
            for mine, name in pairs:
                theirs = np.asarray(group[name], float)
                if theirs.shape != np.shape(mine) or not np.allclose(mine, theirs, rtol=1e-5, equal_nan=True):
                    return False
            ended = [np.asarray(group[name], float)[-1] for name in ("terminations", "truncations")]
            if not set(ended) <= {0.0, 1.0} or bool(log.terminated[i]) != bool(ended[0]):
                return False
    return True


TABLES: dict[str, Callable[[Path], Make]] = {
    "csv": csv_cases,
    "parquet": parquet_cases,
    "npz": npz_cases,
    "minari": minari_cases,
}
