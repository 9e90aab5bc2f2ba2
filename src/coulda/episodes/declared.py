"""What files say of their own size, held against what they are, before anything is read."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from coulda.episodes.validation import LogError, Source
from coulda.extras import require

MOST_TIMES, SMALL = 1100, 2**28
"""Deflate makes at most 1032 bytes of one: a file that promises more is none; below 256 MB nobody is hurt."""


def check_regular(path: Path) -> None:
    """Refuse what is no plain file: a pipe would be waited for without end."""
    if not path.is_file():
        raise LogError("is no regular file", file=path)


def check_promise(promised: int, size: int, source: Source, field: str | None = None) -> None:
    """Refuse a file of `size` bytes that says that it holds `promised` ones."""
    if promised > max(SMALL, MOST_TIMES * size):
        source.refuse(f"{size:,} bytes are said to hold {promised:,}; it is damaged, or made to harm", field=field)


def check_npz(data: bytes, source: Source) -> None:
    """Refuse arrays whose headers do not fit what is stored, and archives that grow without measure."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            names = [info.filename for info in infos]
            for name in {name for name in names if names.count(name) > 1}:
                source.refuse("is there twice", field=name)
            # Stored bytes are as many as they are; what is compressed may be a bomb.
            check_promise(sum(info.file_size for info in infos), len(data), source)
            for info in infos:
                with archive.open(info) as file:
                    promised = _promised(file)
                if promised != info.file_size:
                    source.refuse(
                        f"its header is of {promised:,} bytes, the file of {info.file_size:,}", field=info.filename
                    )
    except LogError:
        raise
    except (ValueError, EOFError, OSError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        source.refuse(f"not an npz of plain arrays: {error}")


def _promised(file: Any) -> int:
    """Bytes of an npy file, by its header."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("object arrays are pickled")
    count = 1
    for size in shape:
        count *= int(size)
    return file.tell() + count * dtype.itemsize


def check_hdf5(path: Path, episodes: int) -> None:
    """Refuse an HDF5 file that reaches out of itself, or holds another number of episodes than it is said to."""
    h5py, source = require("h5py", extra="minari"), Source(path)
    check_regular(path)
    promised = 0
    try:
        with h5py.File(path, "r") as file:
            found = sum(name.startswith("episode_") for name in file)
            if found != episodes:
                source.refuse(f"metadata.json says {episodes} episodes, the file has {found}", field="total_episodes")
            todo, met = [file], set()
            while todo:
                group = todo.pop()
                for name in group:
                    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                        source.refuse("is a link; links are not followed", field=f"{group.name}/{name}")
                    item = group[name]
                    if (where := h5py.h5o.get_info(item.id).addr) in met:
                        continue  # a group may hold itself
                    met.add(where)
                    if isinstance(item, h5py.Group):
                        todo.append(item)
                    elif isinstance(item, h5py.Dataset):
                        if item.external or item.is_virtual:
                            source.refuse("is stored in other files, which are not read", field=item.name)
                        promised += item.size * item.dtype.itemsize
    except LogError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        source.refuse(f"cannot be read: {error!r}")
    check_promise(promised, path.stat().st_size, source)
