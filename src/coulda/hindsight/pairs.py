"""Pairs (u, h): noise and the history that it left, simulated to learn p(U | h_t) from.

p(U | h) does not depend on who acted, so that episodes may come from any mixture of policies. All that is asked of a
simulator is `scenario_prior`, and to run a batch of scenarios under a policy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import msgspec
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.executors import fingerprint
from coulda.hindsight.coding import Code, Coding
from coulda.noise import Iid, Independent
from coulda.policies import AnyAction
from coulda.policies.checks import check_policy_fits
from coulda.pomdp import POMDP, BlackBoxPOMDP, Episode, Policy, Scenario, batched, rollout
from coulda.progress import Advance
from coulda.storage import Kind, load_tree, read_artifact, save_tree, write_artifact

PIECE = 2000
"""Episodes that are simulated between two looks at the clock."""
_ARRAYS = "pairs.safetensors"


class Pairs(eqx.Module):
    """Noise and the episodes that it left, `[n, ...]` in each array."""

    initial: Code
    """Of U_s1."""
    transition: Code
    """Of U_s, `[n, T, ...]`."""
    state: Any
    """`[n, T + 1, ...]`; None of a black box."""
    episode: Episode

    def __len__(self) -> int:
        return self.episode.reward.shape[0]


class PairsMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where pairs come from."""

    count: int
    policies: list[str]
    """Who acted, in equal shares."""
    seed: list[int]
    model: str
    """Its class."""
    fingerprint: str
    """Of the model's numbers and structure."""


PAIRS = Kind("hindsight-pairs", 1, PairsMetadata)


class Codings(eqx.Module):
    """Of the noise of the first state, and of a step."""

    initial: Coding
    transition: Coding

    @classmethod
    def of(cls, model: POMDP) -> "Codings":
        """Of a simulator's prior."""
        prior = model.scenario_prior
        fields = prior.components if isinstance(prior, Independent) else None
        if not isinstance(fields, Scenario) or not isinstance(fields.transition, Iid):
            raise CouldaError(
                f"the scenario_prior of {type(model).__name__} is a {type(prior).__name__}; to learn its hindsight it "
                "must be Independent(Scenario(initial=…, transition=Iid(…, horizon), …))."
            )
        found = cls(Coding(fields.initial), Coding(fields.transition.distribution))
        if not found.initial.num_features + found.transition.num_features:
            without = sorted({*found.initial.not_coded, *found.transition.not_coded})
            raise CouldaError(
                f"{type(model).__name__} has no noise to learn: {without or 'its noise is all Point'}. Give the noise "
                "`from_normal` or `atoms`."
            )
        return found


def shows_states(model: POMDP) -> bool:
    """Whether the model's own states can stand for the noise drawn so far; those of a black box are hidden."""
    return not isinstance(model, BlackBoxPOMDP)


def model_fingerprint(model: POMDP) -> str:
    """A digest of a model's structure and numbers; of a black box, of its prior and spaces."""
    if shows_states(model):
        return fingerprint(model)
    spaces = f"{model.observation_space} {model.action_space} {model.horizon}"
    return fingerprint((model.scenario_prior, spaces))


def simulate_pairs(
    key: Array,
    model: POMDP,
    count: int,
    policies: Mapping[str, Policy] | None = None,
    advance: Advance | None = None,
) -> Pairs:
    """So many pairs, in equal shares of each policy's episodes, in random order. Consumes `key`.

    Args:
        key: consumed.
        model: whose noise is learned: a POMDP, or a black box.
        count: how many.
        policies: who acts, by name; any action by default.
        advance: told of episodes as they are done.
    """
    codings, acting = Codings.of(model), list(acting_policies(model, policies).values())
    if count < len(acting):
        raise CouldaError(f"{count} simulations are fewer than the {len(acting)} policies; simulate more.")
    key_pieces, key_order = jax.random.split(key)
    tell, found, done = advance or (lambda _: None), [], 0
    for number, policy in enumerate(acting):
        share = count * (number + 1) // len(acting) - count * number // len(acting)
        sizes = [PIECE] * (share // PIECE) + ([share % PIECE] if share % PIECE else [])
        for size in sizes:
            # Pieces are of one size, and so one program; the last is cut, but not where episodes are dear.
            whole = min(PIECE, share) if shows_states(model) else size
            keys = jax.random.split(jax.random.fold_in(key_pieces, done), whole)
            piece = _simulated(codings, model, policy, keys)
            found.append(jax.tree.map(lambda leaf, size=size: np.asarray(leaf[:size]), piece))
            done += size
            tell(size)
    order = np.asarray(jax.random.permutation(key_order, count))
    pairs = jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *found)
    _check_finite(model, pairs)
    return pairs


def acting_policies(model: POMDP, policies: Mapping[str, Policy] | None) -> dict[str, Policy]:
    """Who acts: the policies that are given, which must fit, or any action."""
    if not policies:
        return {"any action": AnyAction(model.action_space, model.action_mechanism)}
    for policy in policies.values():
        if not isinstance(policy, Policy):
            raise CouldaError(
                f"a {type(policy).__name__} cannot make pairs: it sees the state, and so its actions tell of it."
            )
        check_policy_fits(policy, model)
    return dict(policies)


def save_pairs(path: Path, pairs: Pairs, metadata: PairsMetadata) -> None:
    """Commit pairs as an artifact at `path`, which must not exist yet."""
    write_artifact(path, PAIRS, [(_ARRAYS, save_tree(pairs))], metadata)


def load_pairs(path: Path, model: POMDP, policy: Policy) -> tuple[Pairs, PairsMetadata]:
    """Pairs of `model`, and where they come from; `policy` is any that acts in it."""
    artifact = read_artifact(path, PAIRS)
    if artifact.metadata.fingerprint != model_fingerprint(model):
        raise CouldaError(
            f"{path} holds pairs of another {artifact.metadata.model} than this {type(model).__name__}, or of one with "
            "other numbers in it; name another folder."
        )
    saved = artifact.only(_ARRAYS)
    codings = Codings.of(model)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), artifact.metadata.count))
    template = eqx.filter_eval_shape(_simulated, codings, model, policy, keys)
    numpy_like = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), template)
    return load_tree(saved, numpy_like), artifact.metadata


@eqx.filter_jit
def _simulated(codings: Codings, model: POMDP, policy: Policy, keys: Array) -> Pairs:
    def one(key: Array) -> Pairs:
        initial, transition, scenario = _draw(codings, model.scenario_prior, model.horizon, key)
        trajectory = rollout(model, policy, scenario)
        states = trajectory.state if shows_states(model) else None
        return Pairs(initial, transition, states, trajectory.episode)

    return batched(one, keys)


def _draw(codings: Codings, prior: Any, horizon: int, key: Array) -> tuple[Code, Code, Scenario]:
    """A scenario of the prior, and its codes. Consumes `key`."""
    key_prior, key_initial, key_transition = jax.random.split(key, 3)
    scenario = prior.sample(key_prior)
    initial, first = codings.initial.sample(key_initial)
    transition, rest = jax.vmap(codings.transition.sample)(jax.random.split(key_transition, horizon))
    return initial, transition, eqx.tree_at(lambda s: (s.initial, s.transition), scenario, (first, rest))


def _check_finite(model: Any, pairs: Pairs) -> None:
    """Refuse a simulator that makes what is no number: nothing could be learned of it."""
    live = np.asarray(pairs.episode.live)
    within = np.concatenate([np.ones((len(live), 1), bool), live], 1)
    for name, mask in (("observation", within), ("action", live), ("reward", live)):
        for leaf in jax.tree.leaves(getattr(pairs.episode, name)):
            values = np.asarray(leaf)
            if not np.issubdtype(values.dtype, np.inexact):
                continue
            bad = ~np.isfinite(values.reshape(*mask.shape, -1)).all(-1) & mask
            for episode, step in np.argwhere(bad)[:1]:
                raise CouldaError(
                    f"{type(model).__name__} made the {name} {values[episode, step]} at step {step} of a simulated "
                    f"episode ({int(bad.any(1).sum()):,} of {len(bad):,} have such); make it finite."
                )
