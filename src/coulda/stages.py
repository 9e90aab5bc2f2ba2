"""Long experiments as stages: each makes one artifact, which is reused as long as nothing it was made from changes.

A stage's folder is named by a digest of its name, its settings and the manifests of the artifacts that it reads. So a
changed setting makes a stage and all that follow anew, and nothing else; a killed run goes on where it was; and what
somebody touched by hand is refused, not used.
"""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from rich.console import Console

from coulda.storage import (
    MANIFEST,
    ArtifactError,
    Kind,
    exclusive,
    read_artifact,
    replace_json,
    verify_artifact,
    write_artifact,
)

__all__ = ["Stages", "read_result", "work_folder", "write_result"]


class ResultMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a result came from."""

    settings: dict[str, Any]


RESULT = Kind("result", 1, ResultMetadata)


@dataclass
class Stages:
    """The stages of one run, in one folder, which is held against other processes until `close`.

    Args:
        folder: where artifacts are kept; made if it is not there.
        console: where each stage is announced.
    """

    folder: Path
    console: Console = field(default_factory=lambda: Console(stderr=True))
    _known: set[Path] = field(default_factory=set, init=False)
    """Made or checked by this object."""
    _holding: ExitStack = field(default_factory=ExitStack, init=False)

    def __post_init__(self) -> None:
        self._holding.enter_context(exclusive(self.folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes work in the folder."""
        self._holding.close()

    def make(
        self, name: str, settings: Mapping[str, Any], inputs: Mapping[str, Path], make: Callable[[Path], None]
    ) -> Path:
        """The artifact of a stage: found whole from an earlier run, or made now by `make(path)`.

        Args:
            name: the name of the stage, a part of its folder's.
            settings: all that it depends on, as msgspec writes it to JSON.
            inputs: artifacts of earlier stages that it reads, by what they are to it.
            make: commits the artifact at a path; what it needs to go on after a kill it keeps in `work_folder(path)`,
                which is removed in the end.
        """
        self._times()  # damaged, it is refused before the work and not after it
        path = self.folder / f"{name}-{self.digest(name, settings, inputs)}"
        if path.exists():
            self._tidy(path)
            if path not in self._known:
                self._check(path)
                self.console.print(f"[dim]{name}: unchanged, {path.name}[/]")
                self._known.add(path)
            return path
        self.console.print(f"[bold]{name}[/] …")
        try:
            with self._timed(path):
                make(path)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                advice = f"stage {name}; make room in {self.folder}, and the same command goes on from there"
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {advice}") from error
            raise
        self._known.add(path)
        self._tidy(path)
        return path

    def result(
        self,
        name: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, Path],
        make: Callable[[], Mapping[str, bytes]],
    ) -> dict[str, bytes]:
        """A stage whose artifact is a few files: their contents, by name."""
        return read_result(self.make(name, settings, inputs, lambda path: write_result(path, settings, make())))

    def seconds(self) -> dict[str, float]:
        """How long each stage that this run used took, all its sessions together, by the name of its folder."""
        used = {path.name for path in self._known}
        return {name: taken for name, taken in self._times().items() if name in used}

    def digest(self, name: str, settings: Mapping[str, Any], inputs: Mapping[str, Path]) -> str:
        """12 hexadecimal digits of what the stage depends on."""
        read = {key: hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest() for key, path in inputs.items()}
        described = msgspec.json.encode([name, settings, read], order="deterministic")
        return hashlib.sha256(described).hexdigest()[:12]

    def _tidy(self, path: Path) -> None:
        """What it took to make the artifact is no longer needed, also where a kill came before this."""
        shutil.rmtree(work_folder(path), ignore_errors=True)

    def _check(self, path: Path) -> None:
        try:
            verify_artifact(path)
        except ArtifactError as error:
            raise ArtifactError(f"{error}; or remove {path}, and it is made again") from error

    def _times(self) -> dict[str, float]:
        times = self.folder / "seconds.json"
        try:
            return msgspec.json.decode(times.read_bytes(), type=dict[str, float]) if times.exists() else {}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            fix = "remove it, and times are counted from now on"
            raise ArtifactError(f"{times}: expected seconds by stage, found something else ({error}); {fix}") from error

    @contextmanager
    def _timed(self, path: Path):
        start = time.perf_counter()
        try:
            yield
        finally:
            times = self._times()
            times[path.name] = times.get(path.name, 0.0) + time.perf_counter() - start
            replace_json(self.folder / "seconds.json", times)


def write_result(path: Path, settings: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Commit a few files as the artifact of a stage."""
    write_artifact(path, RESULT, files.items(), ResultMetadata(msgspec.to_builtins(dict(settings))))


def read_result(path: Path) -> dict[str, bytes]:
    """What `write_result` wrote, checked."""
    artifact = read_artifact(path, RESULT)
    return {part: artifact.read(part) for part in artifact.parts}


def work_folder(path: Path) -> Path:
    """Where the stage that makes `path` keeps what it needs to go on after a kill."""
    return path.with_name(f"{path.name}.work")
