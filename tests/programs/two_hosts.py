"""One learner over two processes that talk over loopback, and the same learner in one.

python two_hosts.py FILE              one process: three updates from both shares; writes the policy
python two_hosts.py FILE RANK PORT    one of two processes, each with its own share
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import optax

OPTIMIZER = optax.adam(1e-2)


def learn(updates: int, shares: list[int], join, replicate):
    """Updates of a recurrent actor-critic in the tiger problem, each from the episodes of its shares."""
    import jax.numpy as jnp

    from coulda.environments import tiger
    from coulda.executors import InProcess
    from coulda.learners.impala import Impala, episodes_of, improve
    from coulda.learners.loss import ActorCriticLoss
    from coulda.policies import RecurrentPolicy

    world = tiger(horizon=4, reparameterization="gumbel_max")
    policy = RecurrentPolicy(jax.random.key(0), world.observation_space, world.action_space, width=8)
    executor = InProcess(episodes_of(world, policy, batch=8, seed=1))
    state = Impala(executor, OPTIMIZER).init(policy)
    policy, optimizer_state, staleness = replicate((state.policy, state.optimizer_state, jnp.float32(0)))
    executor.publish(0, state.policy)  # always the first policy: what is compared is the learner
    for update in range(updates):
        for share in shares:
            executor.request(2 * update + share)
        values = [executor.next().value for _ in shares]
        episodes = join(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *values))
        policy, optimizer_state, _ = improve(ActorCriticLoss(), OPTIMIZER, policy, optimizer_state, episodes, staleness)
    return policy


def main() -> None:
    file, *rest = sys.argv[1:]
    from coulda.devices import join_hosts, replicate
    from coulda.storage import save_tree

    if not rest:
        learned = learn(3, [0, 1], lambda batch: batch, lambda tree: tree)
    else:
        rank, port = map(int, rest)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = f"127.0.0.1:{port}"  # by default the coordinator would listen on all interfaces
        jax.distributed.initialize(address, 2, rank, coordinator_bind_address=address if rank == 0 else None)
        assert jax.device_count() == 2 * jax.local_device_count()
        learned = learn(3, [rank], join_hosts, replicate)
    Path(file).write_bytes(save_tree(learned))
    if rest:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
