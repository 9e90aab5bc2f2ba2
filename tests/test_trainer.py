"""The trainer: exact resume, kills, interrupts, NaNs, damaged checkpoints, several devices."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.errors import CouldaError
from coulda.storage import ArtifactError
from coulda.trainer import NonFiniteError, TrainerConfig, checkpoint_steps, load_checkpoint, train
from coulda.trainer.checkpoints import checkpoint_path
from coulda.trainer.logs import read_log
from tests.programs import training

KEY = jax.random.key(7)
PROGRAM = [sys.executable, str(Path(training.__file__))]


def run(folder, steps, key=KEY, step=training.step, state=None, **rest):
    config = TrainerConfig(steps=steps, **{"checkpoint_every": 4, "log_every": 3, **rest.pop("config", {})})
    state = training.initial_state() if state is None else state
    return train(key, step, state, config, folder=folder, progress=False, **rest)


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), a, b)


def state_files(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("step-*/state.safetensors")}


def test_training_is_a_loop_over_the_step(tmp_path):
    state, step_key = training.initial_state(), jax.random.split(KEY)[0]
    for n in range(10):
        state, _ = training.step(jax.random.fold_in(step_key, n), state)
    trained = run(tmp_path, 10)
    assert (trained.step, trained.stopped_by) == (10, None)
    assert_same_bits(trained.state, state)
    assert_same_bits(run(None, 10).state, state)


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_resume_is_bit_identical(tmp_path, stop):
    whole = run(tmp_path / "whole", 11)
    run(tmp_path / "parts", stop, settings={"rate": 0.1, "shape": (3, 3)})
    parts = run(tmp_path / "parts", 11, resume=True, settings={"rate": 0.1, "shape": (3, 3)})
    assert_same_bits(parts.state, whole.state)
    last = checkpoint_path(tmp_path / "parts", 11) / "state.safetensors"
    assert last.read_bytes() == (checkpoint_path(tmp_path / "whole", 11) / "state.safetensors").read_bytes()


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    trained = run(tmp_path, 5)
    again = run(tmp_path, 5, resume=True, step=None)
    assert again.stopped_by is None
    assert_same_bits(trained.state, again.state)


def test_a_run_is_not_overwritten_nor_mixed_with_another(tmp_path):
    run(tmp_path, 4, settings={"rate": 1})
    with pytest.raises(FileExistsError, match="holds a run of 4 steps; pass resume=True"):
        run(tmp_path, 8)
    with pytest.raises(CouldaError, match="trained from another key"):
        run(tmp_path, 8, key=jax.random.key(8), resume=True, settings={"rate": 1})
    with pytest.raises(CouldaError, match=r"settings \{'rate': 1\}, but is resumed with \{'rate': 2\}"):
        run(tmp_path, 8, resume=True, settings={"rate": 2})
    with pytest.raises(ArtifactError, match="not those of the template"):
        run(tmp_path, 8, resume=True, settings={"rate": 1}, state={"weights": jnp.zeros(16)})


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path):
    step = lambda key, state: (state + 1, {"loss": abs(state - 5.0)})
    run(tmp_path, 12, step=step, state=jnp.float32(0), config={"checkpoint_every": 1, "keep_last": 2, "best": "loss"})
    assert checkpoint_steps(tmp_path) == [6, 11, 12]
    with pytest.raises(CouldaError, match="best='score' is not among the metrics"):
        run(None, 12, step=step, state=jnp.float32(0), config={"best": "score"})


def test_evaluation_is_logged_and_chooses_the_best(tmp_path):
    step = lambda key, state: (state + 1, {"loss": state})
    evaluate = lambda key, state: {"solved": -abs(state - 8.0)}
    config = {"checkpoint_every": 2, "log_every": 4, "keep_last": 1, "best": "solved", "maximize": True}
    run(tmp_path, 12, step=step, state=jnp.float32(0), evaluate=evaluate, config=config)
    assert checkpoint_steps(tmp_path) == [8, 12]
    assert load_checkpoint(tmp_path, jnp.float32(0), step=8).metrics == {"loss": 6.5, "solved": 0.0}
    assert [line["solved"] for line in read_log(tmp_path / "log.jsonl") if "solved" in line][:2] == [-6.0, -4.0]


def test_an_evaluation_that_is_not_finite_is_no_end(tmp_path):
    """It is told, it is never the best, and the run goes on."""
    step = lambda key, state: (state + 1, {"loss": state})
    evaluate = lambda key, state: {"solved": jnp.where(state == 2, 1.0, jnp.nan)}
    config = {"checkpoint_every": 2, "keep_last": 1, "best": "solved", "maximize": True}
    run(tmp_path, 4, step=step, state=jnp.float32(0), evaluate=evaluate, config=config)
    assert checkpoint_steps(tmp_path) == [2, 4]
    assert np.isnan(load_checkpoint(tmp_path, jnp.float32(0)).metrics["solved"])
    run(tmp_path, 6, step=step, state=jnp.float32(0), evaluate=evaluate, config=config, resume=True)
    assert checkpoint_steps(tmp_path) == [2, 6]


def test_the_log_has_each_step_once_after_a_resume(tmp_path):
    run(tmp_path, 9, config={"log_every": 1})
    with (tmp_path / "log.jsonl").open("ab") as log:
        log.write(b'{"step": 9, "lo')
    shutil.rmtree(checkpoint_path(tmp_path, 9))
    run(tmp_path, 12, resume=True, config={"log_every": 1})
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == list(range(1, 13))


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboardX")
    run(tmp_path, 3, tensorboard=True)
    assert any((tmp_path / "tensorboard").iterdir())
    with pytest.raises(CouldaError, match="tensorboard=True needs a folder"):
        run(None, 3, tensorboard=True)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_non_finite_info_stops_with_the_step_named(tmp_path, bad):
    step = lambda key, state: (state + 1, {"loss": jnp.where(state == 6, bad, 1.0)})
    with pytest.raises(
        NonFiniteError, match=r"step 7: loss is (nan|inf); the last good checkpoint is .*step-0000000004"
    ):
        run(tmp_path, 12, step=step, state=jnp.int32(0))
    assert checkpoint_steps(tmp_path) == [4]
    assert load_checkpoint(tmp_path, jnp.int32(0)).state == 4


def test_a_non_finite_state_is_never_saved(tmp_path):
    step = lambda key, state: ({**state, "w": state["w"] * 1e20}, {"loss": jnp.float32(0)})
    state = {"w": jnp.float32(1), "mask": jnp.array([-jnp.inf, 0.0])}  # what was infinite from the start may stay
    with pytest.raises(NonFiniteError, match="step 2: the state holds a NaN or an infinity"):
        run(tmp_path, 12, step=step, state=state, config={"checkpoint_every": 1})
    assert checkpoint_steps(tmp_path) == [1]


def test_settings_out_of_range_are_refused():
    with pytest.raises(CouldaError, match="keep_last is 0; it must be at least 1"):
        TrainerConfig(steps=1, keep_last=0)


def damage(rng: random.Random, folder: Path, step: int, other: int) -> None:
    """Flip a bit, cut a file, swap a part with another checkpoint's, remove a file, or put in something foreign."""
    target, donor = checkpoint_path(folder, step), checkpoint_path(folder, other)
    file = rng.choice(sorted(target.iterdir()))
    data = bytearray(file.read_bytes())
    match rng.randrange(6):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data = bytearray((donor / file.name).read_bytes())
        case 3:
            file.unlink()
            return
        case 4:
            data = bytearray(rng.randbytes(len(data)))
        case 5:
            shutil.rmtree(target)
            shutil.copytree(donor, target)
            return
    file.write_bytes(data)


def test_damaged_checkpoints_are_refused_and_the_newest_good_one_is_offered(tmp_path):
    run(tmp_path / "good", 12, config={"keep_last": 3})
    rng = random.Random(0)
    for _ in range(150):
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        damage(rng, tmp_path / "bad", step=12, other=8)
        with pytest.raises(ArtifactError, match="the newest good checkpoint is step=8"):
            run(tmp_path / "bad", 13, resume=True)
        shutil.rmtree(tmp_path / "bad")


def test_going_on_from_the_newest_good_checkpoint_ends_where_it_should(tmp_path):
    whole = run(tmp_path, 12)
    damage(random.Random(0), tmp_path, step=12, other=8)
    assert_same_bits(run(tmp_path, 12, from_step=8).state, whole.state)
    with pytest.raises(ArtifactError, match=r"the checkpoint of step 3, found those of steps \[4, 8, 12\]"):
        run(tmp_path, 12, from_step=3)
    with pytest.raises(ArtifactError, match="expected a checkpoint, found those of steps"):
        load_checkpoint(tmp_path / "nowhere", training.initial_state())


def program(*arguments) -> str:
    done = subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path):
    """Ten SIGKILLs, half of them inside a checkpoint's write: the same bits in the end as a run left alone."""
    assert "10 kills" in program("kill", tmp_path / "killed", 100_000, 10, 0)
    steps = checkpoint_steps(tmp_path / "killed")[-1] + 4
    for folder in ("killed", "alone"):
        assert program("run", tmp_path / folder, steps, 0) == f"None {steps}\n"  # nothing stopped it
    assert state_files(tmp_path / "killed") == state_files(tmp_path / "alone")
    assert not list((tmp_path / "killed").glob(".*.partial"))


def test_a_second_process_is_refused_while_the_first_trains(tmp_path):
    arguments = ["run", str(tmp_path), "1000", "0.05"]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.DEVNULL) as process:
        try:
            while not checkpoint_steps(tmp_path):
                assert process.poll() is None
                time.sleep(0.01)
            with pytest.raises(CouldaError, match=rf"another process \(pid {process.pid}\) works in"):
                run(tmp_path, 1000, resume=True, config={"best": "loss"})
        finally:
            process.kill()
    reached = checkpoint_steps(tmp_path)[-1]
    assert run(tmp_path, reached + 3, resume=True, config={"log_every": 1}).stopped_by is None
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == list(range(1, reached + 4))


def test_ctrl_c_saves_and_exits_cleanly(tmp_path):
    arguments = ["run", str(tmp_path / "interrupted"), "100000", "0.01"]
    process = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not checkpoint_steps(tmp_path / "interrupted") and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    stopped_by, step = output.split()
    assert (process.returncode, stopped_by) == (0, str(int(signal.SIGINT)))
    program("run", tmp_path / "alone", step, 0)
    name = checkpoint_path(Path(), int(step)).name
    assert state_files(tmp_path / "interrupted")[name] == state_files(tmp_path / "alone")[name]


SHARDED = """
import jax
from coulda.devices import on_all_devices, shard_batch
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_disable_most_optimizations", True)
import jax.numpy as jnp, numpy as np
from coulda.networks import ConvLSTM, convolve
from coulda.pomdp import sum_over_batch

network = ConvLSTM(jax.random.key(0), 3, channels=4)
xs = jax.random.normal(jax.random.key(1), (4, 3, 4, 4, 3))

def unroll(network, xs):
    return jax.lax.scan(lambda carry, x: network(carry, x), network.initial_carry(4, 4), xs)[1]

def loss(network, xs, split):
    return jnp.mean(jax.vmap(lambda xs: unroll(network, xs))(split(xs)) ** 2)

sharded = jax.jit(jax.value_and_grad(lambda *args: loss(*args, shard_batch)))
compiled = sharded.lower(network, xs).compile().as_text()
assert "all-reduce" in compiled and "all-gather" not in compiled
alone = jax.jit(jax.value_and_grad(lambda *args: loss(*args, lambda xs: xs)))(network, xs)
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
jax.tree.map(close, sharded(network, xs), alone)

# Each device sums over its share, and the sums are added up once, after the scan.
total = lambda network, xs: jax.grad(lambda n: 4 * loss(n, xs, lambda xs: xs) * xs.shape[0] / 4)(network)
summed = jax.jit(lambda network, xs: sum_over_batch(total, network, xs))
assert summed.lower(on_all_devices(network), xs).compile().as_text().count("all-reduce(") <= 2
jax.tree.map(close, summed(network, xs), jax.tree.map(lambda g: 4 * g, alone[1]))

# Inside shard_map, which keeps book of what varies over the mesh, the kernel's gradient is summed over the shares.
mesh = jax.make_mesh((2,), ("batch",), (jax.sharding.AxisType.Auto,))
images, kernel = xs[:, 0], network.layers[0].kernel[:, :, :3]
gradient = jax.grad(lambda kernel, images: jnp.sum(jax.vmap(convolve, (0, None))(images, kernel) ** 2))
spread = jax.shard_map(gradient, mesh=mesh, in_specs=(jax.P(), jax.P("batch")), out_specs=jax.P())
np.testing.assert_allclose(spread(kernel, images), gradient(kernel, images), rtol=1e-4, atol=1e-4)

for wrong in (jnp.zeros(3), jnp.zeros(())):
    try:
        shard_batch({"x": wrong})
    except ValueError as error:
        assert "batch['x']" in str(error) and "multiple of 2" in str(error)
    else:
        raise SystemExit("an odd batch was accepted")
"""


@pytest.mark.slow
def test_two_devices_compute_what_one_does():
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


CORES = """
import jax
from coulda.devices import use_all_cores
if "late" in __import__("sys").argv:
    jax.config.update("jax_num_cpu_devices", 7)
    jax.devices()
print(use_all_cores(), len(jax.devices()), use_all_cores())
"""


@pytest.mark.slow
def test_cores_become_devices_before_jax_is_used():
    done = subprocess.run([sys.executable, "-c", CORES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1
    late = subprocess.run([sys.executable, "-c", CORES, "late"], capture_output=True, text=True, timeout=120)
    assert "JAX is in use already with 7 CPU device(s)" in late.stderr


@pytest.mark.parametrize("stop", [None, 8])
def test_patience_ends_training_early_and_the_best_state_is_given(tmp_path, stop):
    """The metric is best at step 8; two checkpoints later it stops, also where it was resumed in between."""
    config = {"best": "distance", "patience": 2}
    evaluate = lambda key, state: {"distance": abs(int(state["count"]) - 8)}
    step = lambda key, state: ({"count": state["count"] + 1}, {"count": state["count"]})
    more = {"config": config, "evaluate": evaluate, "step": step, "state": {"count": jnp.float32(0)}}
    if stop is not None:
        assert run(tmp_path, stop, **more).stopped_by is None
    trained = run(tmp_path, 100, resume=stop is not None, **more)
    assert (trained.step, trained.stopped_by, int(trained.best["count"])) == (16, None, 8)
    with pytest.raises(CouldaError, match="needs `best`"):
        TrainerConfig(10, patience=2)


@pytest.mark.parametrize("line", [b'{"step": "x"}', b"[1]", b'{"loss": 1}', b"\xff\xfe", b'{"step": 1, "loss": ['])
def test_a_damaged_log_is_refused_by_name_and_line(tmp_path, line):
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"step": 1, "loss": 0.5}\n' + line + b'\n{"step": 3, "loss": 0.5}\n')
    with pytest.raises(CouldaError, match=r"log.jsonl, line 2: is no line of a log"):
        read_log(log)
    log.write_bytes(b'{"step": 1, "loss": null}\n{"step": 2, "lo')  # cut by a kill; and a NaN, as JSON has it
    assert [one["step"] for one in read_log(log)] == [1]
