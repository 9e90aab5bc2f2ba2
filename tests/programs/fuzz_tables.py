"""Tables of text and columns in which something is wrong: CSV and Parquet.

What is accepted is held against a second reader, which takes every cell as it is.
"""

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pandas._libs.parsers import STR_NA_VALUES

from coulda.episodes import EpisodeLog, read_any, write_any
from tests.programs.fuzz_arrays import good_log
from tests.programs.fuzz_cases import Case, Make
from tests.programs.fuzz_reader import Rows, judged

CELLS = (
    "", "0", "1", "2", "-1", "0.5", ".5", "NaN", "nan", "inf", "-inf", "1e300", "1e-300", "5e-324", "1e39",
    "2147483648", "4611686018427387904", "9223372036854775808", "99999999999999999999999", "16777217",
    "4000000000000000000", "1.0000001", "1.1", "1e0", "0x10", "1_000", "true", "False", "yes", "t", "left", "a b",
    '"', "'", "\x00", "\x1b[31m", "[/bold]", "__proto__", "2020-01-01", "1,5", "١", "½", "None", "N/A", " 1", "1 ",
    "+1", "--1", "1e", "0.1.2", "é",
)  # fmt: skip


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
        "compressed": gzip.compress(data),
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


TABLES: dict[str, Callable[[Path], Make]] = {"csv": csv_cases, "parquet": parquet_cases}
