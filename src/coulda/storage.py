"""The one place where artifacts are written and read: whole or not at all, and never corrupted in silence.

An artifact is a folder of parts and a `manifest.json` that names its kind, its version, its metadata and the
SHA-256 of every part. It is written beside its place, flushed to the disk and renamed into it, so that a
reader meets a whole artifact or none. Reading checks the manifest's own digest first and each part's digest
before a byte of it is interpreted; nothing is ever unpickled. Trees of arrays become safetensors. Whoever works in
a folder for long holds it, so that two processes never do at once.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TextIO, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from jax import Array

from coulda.errors import CouldaError

__all__ = [
    "Artifact",
    "ArtifactError",
    "Count",
    "Few",
    "Kind",
    "Part",
    "exclusive",
    "load_network",
    "load_tree",
    "load_weights",
    "read_artifact",
    "replace_file",
    "replace_json",
    "save_network",
    "save_tree",
    "verify_artifact",
    "write_artifact",
]

MANIFEST = "manifest.json"
_PARTIAL = ".partial"
LOCK = ".lock"
LOG = "log.jsonl"
"""How a training went, line by line."""
LARGEST_MANIFEST = 2**26
"""Bytes: a log of 100,000 shards has a sixth of it."""
_WEIGHTS = "weights.safetensors"
_PART_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$"

Metadata = TypeVar("Metadata", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=1, le=2**14)]
"""A size in metadata. A manifest can say anything: what is larger would be allocated before it is found wrong."""
Few = Annotated[int, msgspec.Meta(ge=1, le=64)]
"""A number of layers, or passes through them, each of which is traced by itself."""


class ArtifactError(CouldaError):
    """An artifact was refused; the message names the file, what was expected, what was found, and the fix."""


class Kind(msgspec.Struct, Generic[Metadata], frozen=True):
    """A kind of artifact: its name, the version of its layout, and the type of its metadata."""

    name: str
    version: int
    metadata: type[Metadata] | UnionType


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `manifest.json` holds; `sha256` is of the manifest itself, written with that field empty."""

    format: Literal["coulda"]
    kind: str
    version: int
    metadata: Any
    parts: dict[Annotated[str, msgspec.Meta(pattern=_PART_NAME)], Part]
    sha256: str = ""


@dataclass(frozen=True)
class Artifact(Generic[Metadata]):
    """An artifact whose manifest was checked; its parts are checked one by one as they are read."""

    path: Path
    metadata: Metadata
    parts: dict[str, Part]

    def read(self, name: str) -> bytes:
        """The bytes of one part, after its size and digest were found right."""
        if name not in self.parts:
            raise _refusal(self.path / MANIFEST, f"a part '{name}'", f"parts {sorted(self.parts)}")
        part, path = self.parts[name], self.path / name
        data = _read_file(path, part.size)
        if (found := _digest(data)) != part.sha256:
            raise _refusal(path, f"SHA-256 {part.sha256}", found)
        return data

    def only(self, name: str, *others: str) -> bytes:
        """The bytes of a part, checked likewise; it has no parts but this and the others."""
        if unknown := sorted(self.parts.keys() - {name, *others}):
            raise _refusal(self.path / MANIFEST, f"no parts but {[name, *others]}", f"{unknown} beside them")
        return self.read(name)

    def verify(self) -> None:
        """Check every part; raises `ArtifactError` at the first that is wrong."""
        for name in self.parts:
            self.read(name)


def write_artifact(path: Path, kind: Kind[Metadata], parts: Iterable[tuple[str, bytes]], metadata: Metadata) -> None:
    """Commit an artifact at `path`, which must not exist yet: it appears there whole, or not at all.

    `parts` may be a generator: one part is held in memory at a time. `metadata` is encoded after the last part,
    so that it may count what the generator made.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists, and artifacts are never overwritten; remove it or name another")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_PARTIAL, dir=path.parent))
    try:
        digests = {name: _write_part(partial, name, data) for name, data in parts}
        plain = msgspec.to_builtins(metadata)
        msgspec.convert(plain, type=kind.metadata)  # what could not be read again is not written
        manifest = _Manifest("coulda", kind.name, kind.version, plain, digests)
        _write_file(partial / MANIFEST, _seal(manifest))
        _flush_folder(partial)
        partial.chmod(0o755)
        partial.rename(path)
        _flush_folder(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_artifact(path: Path, kind: Kind[Metadata]) -> Artifact[Metadata]:
    """Check the manifest of the artifact at `path` and return it; each part is checked by `Artifact.read`."""
    path = Path(path)
    file, manifest = path / MANIFEST, _read_manifest(path)
    if manifest.kind != kind.name:
        fix = f"give the path of a '{kind.name}'"
        raise _refusal(file, f"kind '{kind.name}'", f"kind '{manifest.kind}'", fix)
    if manifest.version != kind.version:
        fix = "read it with the release of coulda that wrote it"
        raise _refusal(file, f"version {kind.version} of '{kind.name}'", f"version {manifest.version}", fix)
    try:
        metadata = msgspec.convert(manifest.metadata, type=kind.metadata)
    except msgspec.ValidationError as error:
        raise _refusal(file, f"metadata of a '{kind.name}'", f"something else ({error})") from error
    return Artifact(path, metadata, manifest.parts)


def verify_artifact(path: Path) -> None:
    """Check the manifest and every part of an artifact of any kind; raises `ArtifactError` at the first wrong one."""
    path = Path(path)
    Artifact(path, msgspec.Struct(), _read_manifest(path).parts).verify()


def _read_manifest(path: Path) -> _Manifest:
    file = path / MANIFEST
    text = _read_file(file, at_most=LARGEST_MANIFEST)
    try:
        manifest = msgspec.json.decode(text, type=_Manifest)
        unsealed = msgspec.structs.replace(manifest, sha256="")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(file, "a coulda manifest", f"a file that is not one ({error})") from error
    # Byte for byte: a flipped bit that still parses, even in white space, is refused.
    if text != _seal(unsealed):
        raise _refusal(file, f"contents of SHA-256 {manifest.sha256}", "other contents")
    return manifest


def replace_file(path: Path, data: bytes) -> None:
    """Write a plain file, which appears whole or not at all; one that is already there stays until then."""
    # A name of its own: of two writers at once one wins, and neither writes into the other's file.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_PARTIAL}")
    try:
        _write_file(partial, data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_json(path: Path, value: Any) -> None:
    """`replace_file` with a value, NumPy's numbers included, as JSON that a person can read too."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain_number), indent=1) + b"\n")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if it is not there, while working in it: other processes are refused until then.

    The kernel lets go of it when the process ends, however it ends, so that a kill leaves nothing to clean up. Within
    the process it may be held again; it is let go when the last holder is done. What writers that were killed left
    in the folder is removed by the first, since nobody else can be writing there.
    """
    place = Path(folder).resolve()
    if place not in _held:
        _held[place] = _Held(_lock(Path(folder)))
        _remove_partial(place)
    held = _held[place]
    held.times += 1
    try:
        yield
    finally:
        held.times -= 1
        if not held.times:
            _held.pop(place, None)
            held.lock.close()


def save_tree(tree: Any) -> bytes:
    """The arrays and numbers of a tree as safetensors, named by their paths in it; PRNG keys as their key data."""
    return safetensors.numpy.save({name: _to_numpy(leaf) for name, leaf in _named_leaves(tree)})


def load_tree(data: bytes, template: Any) -> Any:
    """The tree that `save_tree` wrote, in the structure of `template`.

    Names, shapes and dtypes must be those of the template's arrays, which may be `jax.ShapeDtypeStruct`s.
    What is neither array nor number (a function, a string, None) is taken from the template. NumPy stays NumPy, and
    Python's numbers Python's.
    """
    try:
        saved = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise ArtifactError(f"expected safetensors, found something else ({error})") from error
    expected = dict(_named_leaves(template))
    if saved.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - saved.keys()), sorted(saved.keys() - expected.keys())
        raise ArtifactError(
            f"the arrays saved are not those of the template: missing {missing}, unexpected {extra}; "
            "build the template from the configuration that was saved"
        )
    loaded = iter([_from_numpy(name, saved[name], leaf) for name, leaf in expected.items()])
    return jax.tree.map(lambda leaf: next(loaded) if _is_array(leaf) or _is_number(leaf) else leaf, template)


def load_weights(data: bytes, template: Any, infinite: bool = False) -> Any:
    """`load_tree` of what a network or a model was trained to: a number that is none is refused."""
    tree = load_tree(data, template)
    for name, leaf in _named_leaves(tree):
        if not _is_array(leaf) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        odd = np.isnan(leaf) if infinite else ~np.isfinite(leaf)
        if odd.any():
            raise ArtifactError(f"array {name}: {int(odd.sum())} of {leaf.size} numbers are not finite; train it anew")
    return tree


def save_network(
    path: Path, kind: Kind[Metadata], network: Any, architecture: Metadata, log: bytes | None = None
) -> None:
    """Commit the weights of a network as an artifact, with the architecture that it takes to read them.

    The log of its training may be a part of it, so that there is no moment at which one is there without the other.
    """
    parts = {_WEIGHTS: save_tree(network)} | ({} if log is None else {LOG: log})
    write_artifact(path, kind, parts.items(), architecture)


def load_network(path: Path, kind: Kind[Metadata], make: Callable[[Array, Metadata], Any]) -> Any:
    """The network that `save_network` wrote, in the structure of `make(key, architecture)`."""
    artifact = read_artifact(path, kind)
    template = eqx.filter_eval_shape(make, jax.random.key(0), artifact.metadata)
    try:
        return load_weights(artifact.only(_WEIGHTS, LOG), template)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error


@dataclass
class _Held:
    lock: TextIO
    times: int = 0


_held: dict[Path, _Held] = {}
"""The folders that this process holds."""


def _lock(folder: Path) -> TextIO:
    """The open file that a lock is held on, with the number of this process in it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise CouldaError(
            f"another process (pid {holder}) works in {folder}; wait for it, or name another folder"
        ) from None
    except BaseException:
        file.close()
        raise
    return file


def _hold_nothing() -> None:
    """Let go in a fork: its parent holds the folders, and shall not hold them beyond its end through this process."""
    for held in _held.values():
        held.lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_hold_nothing)


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(f".*{_PARTIAL}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _refusal(
    file: Path, expected: str, found: str, fix: str = "restore it from a copy or write it anew"
) -> ArtifactError:
    return ArtifactError(f"{file}: expected {expected}, found {found}; {fix}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode(manifest: _Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def _seal(manifest: _Manifest) -> bytes:
    return _encode(msgspec.structs.replace(manifest, sha256=_digest(_encode(manifest))))


def _read_file(path: Path, expected: int | None = None, at_most: int | None = None) -> bytes:
    """A file of a known size, or of a bounded one; a large file in the place of a small one is not read."""
    try:
        # Not `open`: a pipe in the place of a file would block for ever.
        if not path.is_file():
            raise _refusal(path, "a file", "something else" if path.exists() else "nothing")
        size = path.stat().st_size
        if expected not in (None, size):
            raise _refusal(path, f"{expected} bytes", f"{size} bytes")
        if at_most is not None and size > at_most:
            raise _refusal(path, f"at most {at_most} bytes", f"{size} bytes")
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise _refusal(path, "a readable file", error.strerror or str(error)) from error


def _write_part(folder: Path, name: str, data: bytes) -> Part:
    if not re.match(_PART_NAME, name) or name == MANIFEST:
        raise CouldaError(f"part name '{name}' is not a plain file name; use letters, digits, '_', '-' and '.'")
    _write_file(folder / name, data)
    return Part(len(data), _digest(data))


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{value!r} of type {type(value).__name__} has no place in JSON")


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Path and array, or number, of each leaf; the name of a PRNG key also tells its generator."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        if _is_array(leaf):
            yield (f"{name}#{leaf.dtype}" if _is_key(leaf) else name), leaf
        elif _is_number(leaf):
            yield name, leaf


def _to_numpy(leaf: Any) -> np.ndarray:
    if _is_number(leaf):
        return np.asarray(leaf)
    if leaf.dtype == jnp.bfloat16:
        raise CouldaError("bfloat16 arrays cannot be saved; cast them to float32")
    # Row-major, since safetensors writes the memory of any other order as if it were.
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf, order="C")


def _from_numpy(name: str, array: np.ndarray, template: Any) -> Any:
    if _is_number(template):
        return _from_numpy(name, array, np.asarray(template)).item()
    is_key = _is_key(template)
    like = jax.eval_shape(jax.random.key_data, template) if is_key else template
    if (array.shape, array.dtype) != (like.shape, like.dtype):
        raise ArtifactError(
            f"array {name}: expected {like.dtype}{list(like.shape)}, found {array.dtype}{list(array.shape)}; "
            "build the template from the configuration that was saved"
        )
    if is_key:
        generator = jax.random.key_impl(jnp.empty((), template.dtype))
        return jax.random.wrap_key_data(jnp.asarray(array), impl=generator)
    return array if isinstance(template, np.ndarray | np.generic) else jnp.asarray(array)
