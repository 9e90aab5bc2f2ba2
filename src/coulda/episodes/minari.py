"""Minari datasets on HDF5. Needs the extra `minari`.

Behavior probabilities are in `infos["probability"]`, `[T + 1]` as all infos: entry t + 1 came back together
with the reward of action t, entry 0 from the reset. Distributions over discrete actions may be there too, as
`infos["probabilities"]`, `[T + 1, K]`.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from coulda.episodes.arrays import as_flags
from coulda.episodes.log import EpisodeLog, Schema, unpadded
from coulda.episodes.spaces import check_leaves
from coulda.episodes.validation import (
    LogError,
    Source,
    check_promise,
    check_regular,
    from_episodes,
    log_of_probability,
    taken_probability,
)
from coulda.extras import require
from coulda.pomdp import Episode


def read_minari(path: Path | str) -> EpisodeLog:
    """A log of the Minari dataset in the folder `path`, as `minari.load_dataset` finds it there."""
    data = Path(path) / "data"
    schema, total = _schema(data)
    _check_hdf5(data / "main_data.hdf5", total)
    source = Source(data / "main_data.hdf5")
    storage = require("minari.dataset.minari_storage", extra="minari").MinariStorage.read(data)
    episodes, terminated = [], []
    try:
        for index, content in enumerate(storage.get_episodes(range(storage.total_episodes))):
            episodes.append(_episode(content, index, source))
            terminated.append(_ended(content, index, source))
    except LogError:
        raise
    except (OSError, KeyError, RuntimeError, AssertionError, ValueError, TypeError, AttributeError) as error:
        source.refuse(f"cannot be read: {error!r}", episode=len(episodes))
    if not episodes:
        source.refuse("the dataset has no episodes")
    return from_episodes(schema, episodes, np.array(terminated), source)


def write_minari(path: Path | str, log: EpisodeLog) -> None:
    """Write a Minari dataset whose name is that of the folder, such as `random-v0`; images as they are.

    `minari.load_dataset("random-v0")` reads it where MINARI_DATASETS_PATH is the folder's parent.
    """
    path = Path(path)
    minari = require("minari", extra="minari")
    storage_type = require("minari.dataset.minari_storage", extra="minari").MinariStorage
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and renamed, so that it appears whole or not at all.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        partial.mkdir()
        # JPEG loses what the policy saw; the Arrow storage is wrong for long episodes.
        storage = storage_type.new(
            partial / "data",
            log.schema.observation_space,
            log.schema.action_space,
            data_format="hdf5",
            jpeg_encoding=False,
        )
        storage.update_metadata({"dataset_id": path.name, "minari_version": minari.__version__})
        storage.update_episodes(_buffers(log))
        partial.rename(path)


def _schema(data: Path) -> tuple[Schema, int]:
    """Spaces from the metadata, without which Minari would make the environment that the file names; and episodes."""
    file = data / "metadata.json"
    check_regular(file)
    try:
        metadata = json.loads(file.read_text())
        observation, action, total = (
            metadata[name] for name in ("observation_space", "action_space", "total_episodes")
        )
    except (RecursionError, OSError, ValueError, KeyError, TypeError) as error:
        raise LogError(f"not the metadata of a Minari dataset with its spaces: {error!r}", file=file) from error
    if (found := metadata.get("data_format")) != "hdf5":
        raise LogError(f"data_format is '{found}'; only hdf5 is read", file=file, field="data_format")
    if not isinstance(total, int) or isinstance(total, bool):
        raise LogError(f"is {total!r}, not a number of episodes", file=file, field="total_episodes")
    deserialize = require("minari.serialization", extra="minari").deserialize_space
    try:
        schema = Schema(deserialize(observation), deserialize(action))
        check_leaves(schema.observation_space)
        check_leaves(schema.action_space)
    except (AssertionError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LogError(f"its spaces cannot be built: {error!r}", file=file) from error
    return schema, total


def _episode(content: dict[str, Any], index: int, source: Source) -> Episode:
    reward = np.asarray(content["rewards"])
    action = jax.tree.map(np.asarray, content["actions"])
    log_prob = _log_prob(content["infos"] or {}, action, len(reward), index, source)
    return unpadded(content["observations"], action, reward, log_prob)


def _log_prob(infos: dict[str, Any], action: Any, length: int, index: int, source: Source) -> np.ndarray:
    name = next((name for name in ("probability", "probabilities") if name in infos), None)
    if name is None:
        return np.full(length, np.nan, np.float32)
    values = np.asarray(infos[name], np.float64)
    if len(values) != length + 1:
        source.refuse(f"expected {length + 1} entries, got {len(values)}", index, field=f"infos['{name}']")
    one = Source(source.file, [index])
    taken = values[1:] if name == "probability" else taken_probability(values[1:], action, [length], one)
    return log_of_probability(taken, [length], one)


def _ended(content: dict[str, Any], index: int, source: Source) -> bool:
    names, steps = ("terminations", "truncations"), len(content["rewards"])
    terminated, truncated = (as_flags(content[name], name, source, index) for name in names)
    for name, flags in zip(names, (terminated, truncated), strict=True):
        if len(flags) != steps:
            source.refuse(f"has {len(flags)} flags, but there are {steps} rewards", index, field=name)
    if not steps:
        source.refuse("the episode has no steps; drop it", index)
    ends = terminated | truncated
    if ends[:-1].any():
        source.refuse("is set, but the episode goes on", index, int(ends.argmax()), "terminations")
    if not ends[-1]:
        text = "the last step is neither terminated nor truncated; flag how the episode ended"
        source.refuse(text, index, len(ends) - 1, "terminations")
    return bool(terminated[-1])


def _buffers(log: EpisodeLog) -> Iterator[Any]:
    buffer = require("minari.data_collector.episode_buffer", extra="minari").EpisodeBuffer
    for index, episode in enumerate(log):
        flags = np.zeros((2, len(episode.reward)), bool)
        flags[0, -1], flags[1, -1] = log.terminated[index], not log.terminated[index]
        probability = np.concatenate([[np.nan], np.exp(np.asarray(episode.log_prob, float))])
        yield buffer(
            id=index,
            observations=episode.observation,
            actions=episode.action,
            rewards=list(episode.reward),
            terminations=list(flags[0]),
            truncations=list(flags[1]),
            infos={"probability": probability},
        )


def _check_hdf5(path: Path, episodes: int) -> None:
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
