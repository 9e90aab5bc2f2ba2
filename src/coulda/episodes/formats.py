"""Tell the formats of logs apart by what is on the disk."""

import io
from pathlib import Path

import numpy as np

from coulda.episodes.arrays import from_arrays, to_arrays
from coulda.episodes.files import StoredLog, load_arrays, open_log, write_log
from coulda.episodes.log import EpisodeLog
from coulda.episodes.minari import read_minari, write_minari
from coulda.episodes.rows import Columns
from coulda.episodes.tables import read_table, write_table
from coulda.episodes.validation import LogError, Source
from coulda.storage import MANIFEST, replace_file

TABLES = (".parquet", ".csv")
_ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts")


def read_any(path: Path | str, columns: Columns | None = None) -> EpisodeLog | StoredLog:
    """A log in any format: ours (read in batches), Minari, `.parquet`, `.csv`, or `.npz` of an MDPDataset.

    Tables may be several: a folder of them, or a pattern such as `logs/*.parquet`, each with whole episodes of its own.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        return open_log(path)
    if (path / "data" / "metadata.json").exists():
        return read_minari(path)
    if path.is_file() and path.suffix in TABLES:
        return read_table(path, columns)
    if path.is_file() and path.suffix == ".npz":
        return _read_npz(path)
    if tables := tables_of(path):
        return read_table(tables, columns)
    what = "is not there" if not path.exists() else "is in no known format"
    raise LogError(
        f"{what}; a log is a folder of ours or of Minari, a .parquet or .csv table, or the .npz of an MDPDataset",
        file=path,
    )


def tables_of(path: Path) -> list[Path]:
    """The tables of a folder or of a pattern, all of one kind, in order of their names."""
    found = sorted(path.iterdir()) if path.is_dir() else []
    if not path.exists() and any(sign in path.name for sign in "*?["):
        found = sorted(path.parent.glob(path.name))
    tables = [one for one in found if one.suffix in TABLES]
    if len({one.suffix for one in tables}) > 1:
        raise LogError(f"has tables of two kinds, {tables[0].name} and {tables[-1].name}; name one: *.csv", file=path)
    return tables


def write_any(path: Path | str, log: EpisodeLog | StoredLog) -> None:
    """Write a log in the format that the name asks for: .parquet, .csv, .npz, `…-v0` for Minari, else ours."""
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists; remove it or name another")
    if path.suffix in (*TABLES, ".npz") or _is_minari_name(path.name):
        whole = log.read() if isinstance(log, StoredLog) else log
        if path.suffix == ".npz":
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **to_arrays(whole))
            replace_file(path, file.getvalue())
        else:
            (write_minari if _is_minari_name(path.name) else write_table)(path, whole)
    else:
        write_log(path, log)


def _is_minari_name(name: str) -> bool:
    """Names of Minari datasets end in a version: `random-v0`."""
    return name.rpartition("-v")[2].isdecimal() and "-v" in name


def _read_npz(path: Path) -> EpisodeLog:
    source = Source(path)
    arrays = load_arrays(path.read_bytes(), source)
    for name in _ARRAYS[:-1]:
        if name not in arrays:
            source.refuse(f"the file has {sorted(arrays)}; an MDPDataset has {_ARRAYS}", field=name)
    for name in arrays.keys() - {*_ARRAYS, "probability"}:
        source.refuse(f"is not understood; an MDPDataset has {_ARRAYS}, and may have 'probability'", field=name)
    columns = (arrays.get(name) for name in _ARRAYS)
    return from_arrays(*columns, probability=arrays.get("probability"), source=source)
