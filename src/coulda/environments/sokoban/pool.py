"""A pool of levels on disk: an artifact (see `coulda.storage`) of some 20 bytes per level, with its digest.

One record per level: the walls as a bitmap, then the cell of the agent, of each box and of each target, in raster
order. Only well-formed levels with equally many boxes fit the format.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from coulda.environments.sokoban import tiles
from coulda.errors import CouldaError
from coulda.storage import ArtifactError, Kind, read_artifact, write_artifact

_RECORDS = "levels.bin"


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    levels: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    height: Annotated[int, msgspec.Meta(ge=1, le=2**8)]
    width: Annotated[int, msgspec.Meta(ge=1, le=2**8)]
    boxes: Annotated[int, msgspec.Meta(ge=0, le=2**16)]

    @property
    def record_size(self) -> int:
        positions = 1 + 2 * self.boxes
        return -(-self.height * self.width // 8) + positions * self.cell_type.itemsize

    @property
    def cell_type(self) -> np.dtype:
        return np.dtype(np.uint8 if self.height * self.width <= 256 else "<u2")


_KIND = Kind("sokoban-levels", 1, _Metadata)


def write_pool(path: str | Path, levels: np.ndarray) -> str:
    """Write well-formed levels `[n, height, width]` as a folder at `path`, whole or not at all.

    Returns:
        The SHA-256 of the levels, as recorded in the manifest: equal pools have equal digests.
    """
    levels = tiles.as_levels(levels)
    n, height, width = levels.shape
    metadata = _Metadata(n, height, width, _number_of_boxes(levels))
    write_artifact(Path(path), _KIND, [(_RECORDS, _pack(levels, metadata))], metadata)
    return read_artifact(Path(path), _KIND).parts[_RECORDS].sha256


def read_pool(path: str | Path) -> np.ndarray:
    """The levels `uint8[n, height, width]` of a pool; a damaged one raises `coulda.storage.ArtifactError`."""
    artifact = read_artifact(Path(path), _KIND)
    records, expected = artifact.only(_RECORDS), artifact.metadata.levels * artifact.metadata.record_size
    if len(records) != expected:
        raise ArtifactError(f"{path}: expected {expected} bytes of records, found {len(records)}; write it anew")
    try:
        levels = _unpack(records, artifact.metadata)
        same = _number_of_boxes(levels) == artifact.metadata.boxes and _pack(levels, artifact.metadata) == records
    except (IndexError, CouldaError) as error:
        raise ArtifactError(f"{path}: holds records of no level ({error}); write it anew") from error
    if not same:
        raise ArtifactError(f"{path}: holds records that no level is written as; write it anew")
    return levels


def _number_of_boxes(levels: np.ndarray) -> int:
    """How many boxes every level has, or an error that names the first level that does not fit."""
    if not len(levels):
        raise CouldaError("a pool needs at least one level, got none")
    agents, boxes, targets = (f(levels).sum((1, 2)) for f in (tiles.has_agent, tiles.has_box, tiles.has_target))
    bad = np.flatnonzero((agents != 1) | (boxes != boxes[0]) | (targets != boxes[0]))
    if bad.size:
        i = bad[0]
        raise CouldaError(
            f"{bad.size} levels do not fit a pool of {boxes[0]}-box levels; the first is level {i} with {agents[i]} "
            f"agents, {boxes[i]} boxes and {targets[i]} targets. Keep well-formed levels only"
        )
    return int(boxes[0])


def _pack(levels: np.ndarray, metadata: _Metadata) -> bytes:
    flat = levels.reshape(metadata.levels, -1)
    cells = [np.nonzero(f(flat))[1] for f in (tiles.has_agent, tiles.has_box, tiles.has_target)]
    positions = np.concatenate([c.reshape(len(flat), -1) for c in cells], axis=1).astype(metadata.cell_type)
    return np.concatenate([np.packbits(flat == tiles.WALL, axis=1), positions.view(np.uint8)], axis=1).tobytes()


def _unpack(records: bytes, metadata: _Metadata) -> np.ndarray:
    n, height, width, num_boxes = metadata.levels, metadata.height, metadata.width, metadata.boxes
    bitmap = -(-height * width // 8)
    table = np.frombuffer(records, np.uint8).reshape(n, -1)
    flat = np.unpackbits(table[:, :bitmap], axis=1, count=height * width)
    positions = np.ascontiguousarray(table[:, bitmap:]).view(metadata.cell_type).astype(np.intp)
    agent, boxes, targets = np.split(positions, [1, 1 + num_boxes], axis=1)
    row = np.arange(n)[:, None]
    flat[row, targets] = tiles.TARGET
    flat[row, boxes] = np.where(flat[row, boxes] == tiles.TARGET, tiles.BOX_ON_TARGET, tiles.BOX)
    flat[row, agent] = np.where(flat[row, agent] == tiles.TARGET, tiles.AGENT_ON_TARGET, tiles.AGENT)
    return flat.reshape(n, height, width)
