"""The paper's recurrent policy in PyTorch, timed: run by `benchmarks/networks.py` in an environment of its own.

Reads the sizes as JSON from its first argument and prints seconds a call and peak memory as JSON.
"""

import json
import resource
import sys
import time

import torch
from torch import nn


class ConvLSTM(nn.Module):
    """One conv-LSTM layer: a single convolution for the four gates, on [input, hidden]."""

    def __init__(self, inputs: int, channels: int, kernel: int):
        super().__init__()
        self.gates = nn.Conv2d(inputs + channels, 4 * channels, kernel, padding="same")

    def forward(self, x, carry):
        """One step; `carry` is (cell, hidden)."""
        cell, hidden = carry
        i, f, o, g = self.gates(torch.cat([x, hidden], 1)).chunk(4, 1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return cell, torch.sigmoid(o) * torch.tanh(cell)


class Policy(nn.Module):
    """The layers, unrolled over time with `ticks` passes a step, and the two heads."""

    def __init__(self, size, inputs, layers, channels, kernel, ticks, units, actions):
        super().__init__()
        self.ticks, self.shape = ticks, (channels, size, size)
        self.layers = nn.ModuleList(
            ConvLSTM(inputs if layer == 0 else channels, channels, kernel) for layer in range(layers)
        )
        dense = nn.Linear(channels * size * size, units), nn.ReLU(), nn.Linear(units, actions + 1)
        self.heads = nn.Sequential(nn.Flatten(), *dense)

    def forward(self, observations):
        """[T, B, inputs, size, size] -> [T, B, actions + 1]."""
        empty = observations.new_zeros(observations.shape[1], *self.shape)
        empty = empty.to(memory_format=torch.channels_last)
        carries = [(empty, empty) for _ in self.layers]
        outputs = []
        for observation in observations:
            for _ in range(self.ticks):
                x = observation
                for index, layer in enumerate(self.layers):
                    carries[index] = layer(x, carries[index])
                    x = carries[index][1]
            outputs.append(self.heads(x))
        return torch.stack(outputs)


def best_of(function, repeats: int) -> float:
    """Seconds of the fastest call, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Time the forward pass, and forward and backward."""
    settings = json.loads(sys.argv[1])
    steps, batch, repeats = settings.pop("steps"), settings.pop("batch"), settings.pop("repeats")
    torch.set_num_threads(settings.pop("threads"))
    torch.manual_seed(0)
    policy = Policy(**settings).to(memory_format=torch.channels_last)
    size, inputs = settings["size"], settings["inputs"]
    observations = torch.rand(steps * batch, inputs, size, size).to(memory_format=torch.channels_last)
    observations = observations.unflatten(0, (steps, batch))

    def forward():
        with torch.no_grad():
            policy(observations)

    def backward():
        policy.zero_grad()
        policy(observations).square().mean().backward()

    times = {"forward": best_of(forward, repeats), "backward": best_of(backward, repeats)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": times, "peak_memory_mb": round(peak)}))


if __name__ == "__main__":
    main()
