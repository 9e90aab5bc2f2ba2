"""Our own format: npz shards under a manifest with the schema, the counts and a SHA-256 of each part."""

import hashlib
import io
import itertools
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import msgspec
import numpy as np

from coulda.episodes.log import EpisodeLog, Schema, concatenate, sizes_of_batches
from coulda.episodes.spaces import Spec, check_leaves, space_tree, spec_of
from coulda.episodes.validation import LogError, Source, check_npz, checked_log
from coulda.errors import CouldaError
from coulda.notebooks import facts_table
from coulda.storage import Artifact, Kind, read_artifact, write_artifact


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of one part."""

    episodes: int
    steps: int
    max_length: int


class LogMetadata(msgspec.Struct, forbid_unknown_fields=True):
    """What the manifest of a log says beside the digests."""

    observation_space: Spec
    action_space: Spec
    behavior: Literal["logged", "fitted"]
    last_observation: Literal["logged", "repeated"]
    shards: dict[str, Shard]
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


KIND = Kind("episodes", 1, LogMetadata)

SHARD = 2**22
"""Bytes of a shard, about: so many that to open it costs little, and so few that it can be read for one batch of it."""


@dataclass(frozen=True, repr=False)
class StoredLog:
    """A log on disk, read one shard at a time; each shard's digest, counts and values are checked as it is."""

    path: Path
    schema: Schema
    shards: dict[str, Shard]
    artifact: Artifact[LogMetadata]

    def __len__(self) -> int:
        """The number of episodes."""
        return sum(shard.episodes for shard in self.shards.values())

    def __repr__(self) -> str:
        return f"<StoredLog {self.path}: {len(self):,} episodes, {self.num_steps:,} steps; {self.schema.sentence}>"

    def _repr_html_(self) -> str:
        told = {"episodes": f"{len(self):,}", "steps": f"{self.num_steps:,}", "longest": f"{self.max_length:,} steps"}
        return facts_table(f"StoredLog {self.path}", told | {"holds": self.schema.sentence})

    @property
    def num_steps(self) -> int:
        """The number of steps of all episodes."""
        return sum(shard.steps for shard in self.shards.values())

    @property
    def max_length(self) -> int:
        """The longest episode's number of steps."""
        return max((shard.max_length for shard in self.shards.values()), default=0)

    @property
    def fingerprint(self) -> str:
        """A digest of the schema and of the digests of all shards."""
        parts = [part.sha256 for _, part in sorted(self.artifact.parts.items())]
        return hashlib.sha256(str((self.schema, parts)).encode()).hexdigest()

    def batches(self, size: int = 4096) -> Iterator[EpisodeLog]:
        """The log in batches of at most `size` episodes, in order, holding one shard in memory."""
        for name in self.shards:
            yield from self._shard(name).batches(size)

    def batch(self, index: int, size: int = 4096) -> EpisodeLog:
        """The batch of `batches(size)` at `index`; its shard alone is read."""
        for name, shard in self.shards.items():
            batches = len(sizes_of_batches(shard.episodes, size))
            if index < batches:
                return self._shard(name).batch(index, size)
            index -= batches
        raise IndexError(f"{self.path} has fewer batches of {size} episodes than that")

    def batch_sizes(self, size: int = 4096) -> list[int]:
        """How many episodes each batch of `batches(size)` has."""
        return [count for shard in self.shards.values() for count in sizes_of_batches(shard.episodes, size)]

    def read(self) -> EpisodeLog:
        """All of it, in memory."""
        return concatenate([self._shard(name) for name in self.shards])

    def _shard(self, name: str) -> EpisodeLog:
        first = sum(shard.episodes for other, shard in self.shards.items() if other < name)
        source = Source(self.path / name, range(first, first + self.shards[name].episodes))
        log = _decode(self.schema, self.artifact.read(name), source)
        if (found := _counts(log)) != self.shards[name]:
            source.refuse(f"the manifest says {self.shards[name]}, the file has {found}")
        return log


def write_log(path: Path | str, log: EpisodeLog | StoredLog | Iterable[EpisodeLog]) -> None:
    """Write a log, or its batches as they come, each as a shard. It appears whole at `path`, or not at all."""
    batches = (
        _shards(log) if isinstance(log, EpisodeLog) else log.batches() if isinstance(log, StoredLog) else iter(log)
    )
    first = next(batches, None)
    if first is None:
        raise CouldaError(f"nothing to write to {path}: the log has no episodes")
    schema = first.schema
    spaces = spec_of(schema.observation_space), spec_of(schema.action_space)
    told = schema.observation_names, schema.action_names, schema.notes
    metadata = LogMetadata(*spaces, schema.behavior, schema.last_observation, {}, *told)

    def parts() -> Iterator[tuple[str, bytes]]:
        for index, shard in enumerate(itertools.chain([first], batches)):
            name = f"shard-{index:06d}.npz"
            metadata.shards[name] = _counts(shard)
            yield name, _encode(shard)

    write_artifact(Path(path), KIND, parts(), metadata)


def open_log(path: Path | str) -> StoredLog:
    """A log in our own format, ready to be read in `batches` or whole (`read`)."""
    artifact = read_artifact(Path(path), KIND)
    metadata = artifact.metadata
    try:
        spaces = metadata.observation_space.space(), metadata.action_space.space()
        for space, spec in zip(spaces, (metadata.observation_space, metadata.action_space), strict=True):
            check_leaves(space)
            if spec_of(space) != spec:
                raise CouldaError(f"{spec} is not how {space} is written")
    except (AssertionError, ValueError, TypeError, OverflowError) as error:
        raise LogError(f"its spaces cannot be built: {error}", file=path) from error
    if metadata.shards.keys() != artifact.parts.keys():
        raise LogError(
            f"the manifest counts {sorted(metadata.shards)} and has the parts {sorted(artifact.parts)}", file=path
        )
    told = metadata.observation_names, metadata.action_names, metadata.notes
    schema = Schema(*spaces, metadata.behavior, metadata.last_observation, *told)
    return StoredLog(Path(path), schema, dict(sorted(metadata.shards.items())), artifact)


def _shards(log: EpisodeLog) -> Iterator[EpisodeLog]:
    size = sum(column.nbytes for column in _columns(log).values())
    return log.batches(max(1, SHARD * len(log) // max(size, 1)))


def _counts(log: EpisodeLog) -> Shard:
    return Shard(len(log), log.num_steps, log.max_length)


def _columns(log: EpisodeLog) -> dict[str, np.ndarray]:
    named = {name: getattr(log, name) for name in ("reward", "log_prob", "lengths", "terminated")}
    for field in ("observation", "action"):
        leaves = jax.tree.leaves(getattr(log, field))
        named |= {f"{field}.{i}": array for i, array in enumerate(leaves)}
    return named


def _encode(log: EpisodeLog) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **_columns(log))
    return file.getvalue()


def _decode(schema: Schema, data: bytes, source: Source) -> EpisodeLog:
    arrays = load_arrays(data, source)
    structures = {
        "observation": jax.tree.structure(space_tree(schema.observation_space)),
        "action": jax.tree.structure(space_tree(schema.action_space)),
    }
    names = {f"{field}.{i}" for field, tree in structures.items() for i in range(tree.num_leaves)}
    names |= {"reward", "log_prob", "lengths", "terminated"}
    if arrays.keys() != names:
        missing, extra = sorted(names - arrays.keys()), sorted(arrays.keys() - names)
        source.refuse(f"arrays are missing {missing} or unexpected {extra}", field=(missing + extra)[0])

    def tree(field: str) -> Any:
        structure = structures[field]
        return jax.tree.unflatten(structure, [arrays[f"{field}.{i}"] for i in range(structure.num_leaves)])

    rest = {name: arrays[name] for name in ("reward", "log_prob", "lengths", "terminated")}
    return checked_log(schema, tree("observation"), tree("action"), source=source, **rest)


def load_arrays(data: bytes, source: Source) -> dict[str, np.ndarray]:
    """The arrays of an npz; nothing is unpickled, and anything that is not plain arrays is refused."""
    check_npz(data, source)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, OSError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        source.refuse(f"not an npz of plain arrays: {error}")
