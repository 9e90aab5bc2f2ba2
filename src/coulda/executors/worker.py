"""The other side of `Processes` and `Ray`: bytes in, bytes out.

`python -m coulda.executors.worker` serves requests on its standard input and answers on its standard output, in
frames of msgpack, each after its length. It ends when its input does.
"""

import os
import struct
import sys
from functools import cached_property
from traceback import format_exception
from typing import Any, BinaryIO, TypeVar

import jax
import msgspec

from coulda.errors import CouldaError, own_frames
from coulda.executors.work import Work, WorkSpec
from coulda.storage import load_tree, save_tree

DECISIVE = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)
"""Settings of JAX that decide what a program computes, to the bit or at all: a worker takes them over."""

Message = TypeVar("Message", bound=msgspec.Struct)


class Hello(msgspec.Struct, frozen=True):
    """The first message to a worker."""

    spec: WorkSpec
    jax_settings: dict[str, Any]


class Request(msgspec.Struct, frozen=True):
    """Make batch `index`; `parameters` come along when the worker does not have those of `version`."""

    version: int
    index: int
    parameters: bytes | None


class Reply(msgspec.Struct, frozen=True):
    """A batch as safetensors, or the traceback of what went wrong."""

    value: bytes | None = None
    error: str | None = None


class Worker:
    """Works on requests, and remembers the parameters of one version."""

    def __init__(self, hello: Hello):
        # JAX fixes its devices when it is first used, which must not have happened yet.
        for name, value in hello.jax_settings.items():
            jax.config.update(name, value)
        self._spec, self._version, self._parameters = hello.spec, None, None

    @cached_property
    def _work(self) -> Work:
        # Built with the first request, so that what is wrong with it is told in reply.
        return self._spec.build()

    def run(self, request: Request) -> bytes:
        """A batch, as safetensors."""
        if request.version != self._version:
            assert request.parameters is not None
            self._parameters = load_tree(request.parameters, self._work.parameters)
            self._version = request.version
        return save_tree(self._work(self._parameters, request.index))


def told(error: Exception) -> str:
    """What the caller is told of it: a sentence, the user's own frames, or, of a defect, all of it."""
    return str(error) if isinstance(error, CouldaError) else own_frames(error) or "".join(format_exception(error))


def hello(spec: WorkSpec) -> Hello:
    """For a worker that shall compute what this process would: on as many CPU devices, since they split the batch."""
    devices = jax.local_device_count() if jax.default_backend() == "cpu" else 1
    settings = {name: jax.config.values[name] for name in DECISIVE}
    return Hello(spec, {**settings, "jax_num_cpu_devices": devices})


def send(file: BinaryIO, message: msgspec.Struct) -> None:
    """Write one frame."""
    data = msgspec.msgpack.encode(message)
    file.write(struct.pack("!Q", len(data)) + data)
    file.flush()


def receive(file: BinaryIO, kind: type[Message]) -> Message:
    """Read one frame; `EOFError` where the other side is gone, also in the middle of one."""
    (length,) = struct.unpack("!Q", _read(file, 8))
    return msgspec.msgpack.decode(_read(file, length), type=kind)


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what user code prints must not stand between answers
    try:
        worker = Worker(receive(sys.stdin.buffer, Hello))
        while True:
            request = receive(sys.stdin.buffer, Request)
            try:
                reply = Reply(value=worker.run(request))
            except Exception as error:
                reply = Reply(error=told(error))
            send(answers, reply)
    except (EOFError, BrokenPipeError):
        # Nobody listens; without cleaning up, since JAX's threads may be at work.
        os._exit(0)


if __name__ == "__main__":
    main()
