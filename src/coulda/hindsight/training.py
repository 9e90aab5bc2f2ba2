"""Training an `Amortized` source: simulate pairs, keep them, and raise log q(u | h_t) until held-out pairs say stop."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.devices import on_all_devices
from coulda.errors import CouldaError
from coulda.hindsight.amortized import SOURCE, Amortized, AmortizedMetadata
from coulda.hindsight.hindsight_network import HindsightNetwork, first_network
from coulda.hindsight.likelihood import seen_in, separate_rewards
from coulda.hindsight.pairs import (
    Codings,
    Pairs,
    PairsMetadata,
    acting_policies,
    load_pairs,
    model_fingerprint,
    save_pairs,
    simulate_pairs,
)
from coulda.hindsight.particles import check_size
from coulda.pomdp import POMDP, Policy, batched, sum_over_batch
from coulda.progress import bar
from coulda.storage import exclusive
from coulda.trainer import TrainerConfig, descend, first_state, train

if TYPE_CHECKING:  # whoever trains imports it: a first table is waited for
    import optax

PAIRS, RUN = "pairs", "run"
"""Where a training's folder keeps its pairs and its checkpoints."""
HELD_OUT, MOST_HELD_OUT = 0.1, 10_000
"""The share of pairs that nothing is learned from, and how many of them are enough."""
WHOLE = 0.5
"""The share of pairs whose whole episode is given; in the others t is uniform over 1 … T + 1."""
BATCH = 256
UPDATES, FEWEST_PASSES, MOST_PASSES = 9000, 25, 150
"""About how many updates there are, and how many passes over the pairs that may be."""
PATIENCE = 20
"""Passes without a better result on held-out pairs."""
LEARNING_RATE, WEIGHT_DECAY, CLIP = 8e-3, 1e-3, 5.0
"""Of AdamW. On two moons with 10⁴ pairs, held-out log q was 1.85 nats with half the rate in 60 passes, 1.91 in 150, and
2.14 with this."""
AVERAGED = 0.99
"""Of what is kept of the running mean of parameters at an update; the mean is what is used."""
LOSS = "held_out/loss"
LINES = 20_000
"""Pairs from which the linear regression is learned, at most."""


@dataclass(frozen=True)
class TrainedHindsight:
    """A source, and how it came about."""

    source: Amortized
    metadata: AmortizedMetadata


def train_hindsight(
    key: Array,
    model: POMDP,
    policies: Mapping[str, Policy] | None = None,
    *,
    simulations: int = 10_000,
    steps: int | None = None,
    width: int = 64,
    components: int = 8,
    passes: int | None = None,
    rewards: bool | None = None,
    folder: Path | None = None,
    progress: bool = True,
) -> TrainedHindsight:
    """Simulate pairs (u, h) of `model`, and train a network to say p(U | h_t). Consumes `key`.

    Args:
        key: the key of everything that is drawn.
        model: a POMDP; of a black box, such as a `GymSimulator`, states are not seen.
        policies: who acts in the simulated episodes, by name, in equal shares; any action by default. p(U | h) does not
            depend on who acts, but a network knows only histories like those that it has met: add those who logged.
        simulations: how many pairs.
        steps: the t of h_t, if all shall be alike; by default one network serves every t.
        width: of the recurrent nets' memories and hidden layers.
        components: of the mixture of Gaussians of each number.
        passes: over the pairs, at most; some 9,000 updates by default. Held-out pairs may stop it before.
        rewards: whether they are evidence. By default where they take separate values, as for `Particles`: one that
            varies little by little often tells hidden numbers to the last digit, which no network can follow.
        folder: where the pairs, checkpoints and the source are kept. Where Ctrl-C stopped it (`Stopped` is raised), the
            same call goes on.
        progress: show progress on the screen.
    """
    for name, value, least in (("simulations", simulations, 20), ("width", width, 1), ("components", components, 1)):
        check_size(name, value, least)
    key_pairs, key_split, key_network, key_train = jax.random.split(key, 4)
    folder = None if folder is None else Path(folder)
    with _held(folder):
        pairs, told = _pairs(key_pairs, model, policies, simulations, folder, progress)
        codings, (learned, held_out) = Codings.of(model), _split(key_split, pairs)
        shown = separate_rewards(model) if rewards is None else rewards
        network = _begun(key_network, codings, learned, steps, width, components, shown)
        lengths = random_steps(jax.random.fold_in(key_split, 1), len(held_out), model.horizon, steps)
        measure = lambda network: float(mean_loss(codings, network, held_out, lengths))
        settings = {"simulations": simulations, "steps": steps, "width": width, "components": components}
        settings |= {"passes": passes, "rewards": shown, "fingerprint": told.fingerprint}
        training = HindsightTraining.of(codings, learned, steps, passes)
        loss, best = _best(key_train, training, network, measure, settings, folder, progress)
        made = network.architecture, told.model, told.fingerprint, simulations, tuple(told.policies), steps
        metadata = AmortizedMetadata(*made, int(best.passes), loss)
        source = Amortized(model, best.average)
        source = source if steps is None else source.given(steps)
        if folder is not None:
            source.save(folder / SOURCE, metadata)
    return TrainedHindsight(source, metadata)


def _held(folder: Path | None) -> AbstractContextManager[Any]:
    """The folder, by this process alone; one in which a source was written is refused."""
    if folder is None:
        return nullcontext()
    if (folder / SOURCE).exists():
        raise FileExistsError(f"{folder / SOURCE} exists; name another folder, or remove it")
    return exclusive(folder)


def _best(
    key: Array,
    training: "HindsightTraining",
    network: HindsightNetwork,
    measure: Callable[[HindsightNetwork], float],
    settings: dict[str, Any],
    folder: Path | None,
    progress: bool,
) -> tuple[float, "HindsightState"]:
    """The least loss that `measure` finds on held-out pairs, and the state that has it. Consumes `key`."""
    trained = train(
        key,
        training.step,
        training.init(network),
        TrainerConfig(training.passes, log_every=1, checkpoint_every=1, keep_last=1, best=LOSS, patience=PATIENCE),
        folder=None if folder is None else folder / RUN,
        settings=settings,
        evaluate=lambda _, state: {LOSS: measure(state.average)},
        resume=folder is not None,
        progress=progress,
    )
    trained.check_finished()
    # Where nothing was learned that holds, what it began with is better: the linear regression.
    reached = training.init(network) if trained.best is None else trained.best
    return min(((measure(one.average), one) for one in (training.init(network), reached)), key=lambda x: x[0])


class HindsightState(eqx.Module):
    """What the next pass needs."""

    network: HindsightNetwork
    average: HindsightNetwork
    """A running mean of the networks, which is what is used."""
    optimizer_state: Any
    passes: Array


class HindsightTraining(eqx.Module):
    """Passes over pairs: each is one step of the trainer, in as many updates as there are batches."""

    codings: Codings
    pairs: Pairs
    optimizer: "optax.GradientTransformation" = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    passes: int = eqx.field(static=True)
    steps: int | None = eqx.field(static=True)

    @classmethod
    def of(cls, codings: Codings, pairs: Pairs, steps: int | None, passes: int | None) -> "HindsightTraining":
        """AdamW, its rate rising for a while and then falling to 0 along a cosine."""
        import optax

        batch = min(BATCH, len(pairs))
        updates = len(pairs) // batch
        passes = passes or int(np.clip(UPDATES // updates, FEWEST_PASSES, MOST_PASSES))
        total = max(passes * updates, 2)  # one to rise, one to fall
        rate = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, max(total // 20, 1), total)
        optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(rate, weight_decay=WEIGHT_DECAY))
        return cls(codings, jax.tree.map(jnp.asarray, pairs), optimizer, batch, passes, steps)

    def init(self, network: HindsightNetwork) -> HindsightState:
        """The state before the first pass."""
        state = first_state(self.optimizer, eqx.filter(network, learnable(network)))
        return on_all_devices(HindsightState(network, network, state, jnp.int32(0)))

    def step(self, key: Array, state: HindsightState) -> tuple[HindsightState, dict[str, Array]]:
        """One pass over the pairs in random order, t drawn for each. Consumes `key`."""
        return _pass(self, key, state)

    def gradient(self, shared: Any, batch: Any) -> tuple[Any, Array]:
        """Of the sum of the losses of some pairs, and that sum."""
        (part, fixed), (pairs, steps) = shared, batch

        def loss(part: Any) -> Array:
            network = eqx.combine(part, fixed)
            return -jnp.sum(jax.vmap(lambda pair, t: network.log_prob(self.codings, pair, t))(pairs, steps))

        value, gradient = eqx.filter_value_and_grad(loss)(part)
        return gradient, value


@eqx.filter_jit
def _pass(training: HindsightTraining, key: Array, state: HindsightState) -> tuple[HindsightState, dict[str, Array]]:
    key_order, key_steps = jax.random.split(key)
    count, batch = len(training.pairs), training.batch
    order = jax.random.permutation(key_order, count)[: count // batch * batch].reshape(-1, batch)
    steps = random_steps(key_steps, order.size, training.pairs.episode.reward.shape[1], training.steps)
    kept = learnable(state.network)
    network, fixed = eqx.partition(state.network, kept)

    def update(carry: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
        network, average, optimizer_state = carry
        rows, steps = inputs
        pairs = jax.tree.map(lambda leaf: leaf[rows], training.pairs)
        gradient, loss = sum_over_batch(training.gradient, (network, fixed), (pairs, steps))
        gradient = jax.tree.map(lambda total: total / batch, gradient)
        network, optimizer_state = descend(training.optimizer, gradient, optimizer_state, network)
        average = jax.tree.map(lambda a, b: AVERAGED * a + (1 - AVERAGED) * b, average, network)
        return (network, average, optimizer_state), loss / batch

    start = network, eqx.filter(state.average, kept), state.optimizer_state
    (network, average, optimizer_state), losses = jax.lax.scan(update, start, (order, steps.reshape(order.shape)))
    found = HindsightState(eqx.combine(network, fixed), eqx.combine(average, fixed), optimizer_state, state.passes + 1)
    return found, {"loss": jnp.mean(losses)}


def learnable(network: HindsightNetwork) -> Any:
    """Which arrays are learned by descent: not how features are shown, and not where heads begin."""
    spec = jax.tree.map(eqx.is_inexact_array, network)
    off = lambda tree: jax.tree.map(lambda _: False, tree)
    where = lambda n: (
        *(n.observation, n.action, n.reward, n.state),
        *(n.first.start, n.first.line, n.first.spread, n.then.start, n.then.line, n.then.spread),
    )
    return eqx.tree_at(where, spec, tuple(map(off, where(spec))), is_leaf=lambda x: x is None)


def random_steps(key: Array, count: int, horizon: int, steps: int | None) -> Array:
    """The t of each of so many pairs, int32: as is said, or the whole episode in half of them. Consumes `key`."""
    if steps is not None:
        return jnp.full(count, steps, jnp.int32)
    key_whole, key_steps = jax.random.split(key)
    some = jax.random.randint(key_steps, (count,), 1, horizon + 2)
    return jnp.where(jax.random.uniform(key_whole, (count,)) < WHOLE, jnp.int32(horizon + 1), some)


@eqx.filter_jit
def mean_loss(codings: Codings, network: HindsightNetwork, pairs: Pairs, steps: Array) -> Array:
    """The mean of -log q(u | h_t), in nats, with the t of each pair."""
    return -jnp.mean(batched(lambda pair: network.log_prob(codings, *pair), (pairs, steps)))


def _pairs(
    key: Array,
    model: POMDP,
    policies: Mapping[str, Policy] | None,
    count: int,
    folder: Path | None,
    progress: bool,
) -> tuple[Pairs, PairsMetadata]:
    """Those that the folder has, or new ones, which it has then. Consumes `key`."""
    acting = acting_policies(model, policies)
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    asked = PairsMetadata(count, list(acting), seed, type(model).__name__, model_fingerprint(model))
    path = None if folder is None else folder / PAIRS
    if path is not None and path.exists():
        pairs, found = load_pairs(path, model, next(iter(acting.values())))
        if found != asked:
            raise CouldaError(
                f"{path} holds {found.count:,} pairs under {', '.join(found.policies)} from its seed, and {count:,} "
                f"under {', '.join(asked.policies)} are asked for; name another folder, or go on as it was begun."
            )
        return pairs, found
    with bar(f"simulating {count:,} episodes", count, progress) as advance:
        pairs = simulate_pairs(key, model, count, policies, advance)
    if path is not None:
        save_pairs(path, pairs, asked)
    return pairs, asked


def _split(key: Array, pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Those to learn from, and those that are held out. Consumes `key`."""
    order = np.asarray(jax.random.permutation(key, len(pairs)))
    out = min(max(int(HELD_OUT * len(pairs)), 1), MOST_HELD_OUT)
    pick = lambda rows: jax.tree.map(lambda leaf: np.asarray(leaf)[rows], pairs)
    return pick(order[out:]), pick(order[:out])


def _begun(
    key: Array, codings: Codings, pairs: Pairs, steps: int | None, width: int, components: int, rewards: bool
) -> HindsightNetwork:
    """The network before it learns: features as in the pairs, heads at linear regressions. Consumes `key`."""
    key_network, key_steps = jax.random.split(key)
    network = first_network(key_network, codings, pairs, width, components, rewards)
    some = jax.tree.map(lambda leaf: leaf[:LINES], pairs)
    lengths = random_steps(key_steps, len(some), some.episode.reward.shape[1], steps)
    first, later, acted = (np.asarray(x) for x in _at_hand(codings, network, some, lengths))
    network = eqx.tree_at(lambda n: n.first, network, network.first.with_line(first, some.initial))
    if acted.any():
        codes = jax.tree.map(lambda leaf: leaf[acted], some.transition)
        network = eqx.tree_at(lambda n: n.then, network, network.then.with_line(later[acted], codes))
    return network


@eqx.filter_jit
def _at_hand(codings: Codings, network: HindsightNetwork, pairs: Pairs, steps: Array) -> tuple[Array, Array, Array]:
    """What the first head is shown of each pair, what the others are, and where."""

    def one(inputs: tuple[Pairs, Array]) -> tuple[Array, Array, Array]:
        pair, t = inputs
        known = network.known(seen_in(pair.episode, t))
        return known.entries[0], network.contexts(codings, pair, known)[0], known.acted

    return batched(one, (pairs, steps))
