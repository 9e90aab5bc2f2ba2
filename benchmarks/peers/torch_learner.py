"""One IMPALA update of the paper's policy in PyTorch, timed: run by `benchmarks/learner.py` in its own environment.

Reads the sizes as JSON from its first argument and prints seconds an update as JSON.
"""

import json
import sys

import torch
from torch_networks import Policy, best_of


def vtrace(ratio, reward, value, discount):
    """Targets and advantages, `[T, B]`; nothing is earned after the last step."""
    rho = ratio.clamp(max=1.0)
    following = torch.cat([value[1:], torch.zeros_like(value[:1])])
    error = rho * (reward + discount * following - value)
    correction, corrections = torch.zeros_like(value[0]), []
    for t in reversed(range(len(value))):
        correction = error[t] + discount * rho[t] * correction
        corrections.append(correction)
    target = value + torch.stack(corrections[::-1])
    following = torch.cat([target[1:], torch.zeros_like(target[:1])])
    return target, rho * (reward + discount * following - value)


def loss(policy, observations, action, reward, behavior, discount):
    """Policy gradient, value and entropy, a mean over all steps."""
    outputs = policy(observations)
    log_probs, value = torch.log_softmax(outputs[..., :-1], -1), outputs[..., -1]
    taken = log_probs.gather(-1, action[..., None])[..., 0]
    with torch.no_grad():
        target, advantage = vtrace((taken - behavior).exp(), reward, value, discount)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return (-taken * advantage).mean() + 0.25 * (target - value).square().mean() - 0.01 * entropy


def main() -> None:
    """Time an update: unroll, loss, gradient, clipping and Adam."""
    settings = json.loads(sys.argv[1])
    steps, batch, repeats = settings.pop("steps"), settings.pop("batch"), settings.pop("repeats")
    torch.set_num_threads(settings.pop("threads"))
    torch.manual_seed(0)
    policy = Policy(**settings).to(memory_format=torch.channels_last)
    size, inputs, actions = settings["size"], settings["inputs"], settings["actions"]
    observations = torch.rand(steps * batch, inputs, size, size).to(memory_format=torch.channels_last)
    observations = observations.unflatten(0, (steps, batch))
    action = torch.randint(actions, (steps, batch))
    reward, behavior = torch.randn(steps, batch), torch.full((steps, batch), -1.6)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)

    def update():
        optimizer.zero_grad()
        loss(policy, observations, action, reward, behavior, 0.97).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()

    print(json.dumps({"seconds": best_of(update, repeats)}))


if __name__ == "__main__":
    main()
