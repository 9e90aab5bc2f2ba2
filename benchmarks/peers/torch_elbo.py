"""The paper's scenario model in PyTorch, timed: run by `benchmarks/elbo.py` in an environment of its own.

Reads the sizes as JSON from its first argument and prints seconds a call and peak memory as JSON.
"""

import json
import resource
import sys

import torch
from torch import nn
from torch.nn import functional
from torch_networks import ConvLSTM, best_of


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3×3, of the same size."""
    return nn.Conv2d(inputs, outputs, 3, padding="same")


class Layer(nn.Module):
    """The networks of one latent layer."""

    def __init__(self, channels, latents, tiles):
        super().__init__()
        self.prior = convolution(2 * channels, 2 * latents)
        self.encoder = ConvLSTM(2 * tiles + 2 * channels, channels, 3)
        self.posterior = convolution(channels, 2 * latents)
        self.decoder = ConvLSTM(latents + channels, channels, 3)
        self.write = convolution(channels, tiles)


class ConvDRAW(nn.Module):
    """Reader, K layers, canvas; the negative ELBO of a batch."""

    def __init__(self, size, tiles, actions, num_layers, channels, latents):
        super().__init__()
        self.shape, self.tiles = (channels, size, size), tiles
        self.reader = ConvLSTM(tiles + actions + 2, channels, 3)
        self.layers = nn.ModuleList(Layer(channels, latents, tiles) for _ in range(num_layers))

    def forward(self, level, history, noise):
        """Level [B, tiles, s, s], history [T, B, inputs, s, s], noise [K, B, latents, s, s]."""
        empty = level.new_zeros(level.shape[0], *self.shape).to(memory_format=torch.channels_last)
        carry = (empty, empty)
        for step in reversed(range(len(history))):
            carry = self.reader(history[step], carry)
        summary, encoder, decoder = carry[1], (empty, empty), (empty, empty)
        canvas, divergence = torch.zeros_like(level), level.new_zeros(())
        for layer, epsilon in zip(self.layers, noise, strict=True):
            prior_mean, prior_scale = self.gaussian(layer.prior(torch.cat([decoder[1], summary], 1)))
            missing = level - canvas.softmax(1)
            encoder = layer.encoder(torch.cat([level, missing, decoder[1], summary], 1), encoder)
            mean, scale = self.gaussian(layer.posterior(encoder[1]))
            ratio, distance = torch.exp(2 * (scale - prior_scale)), ((mean - prior_mean) * torch.exp(-prior_scale)) ** 2
            divergence = divergence + 0.5 * (ratio + distance - 1).sum() - (scale - prior_scale).sum()
            decoder = layer.decoder(torch.cat([mean + scale.exp() * epsilon, summary], 1), decoder)
            canvas = canvas + layer.write(decoder[1])
        likelihood = (functional.log_softmax(canvas, 1) * level).sum()
        return (divergence - likelihood) / level.shape[0]

    @staticmethod
    def gaussian(parameters):
        """Mean and log-scale, the latter within ±5."""
        mean, scale = parameters.chunk(2, 1)
        return mean, 5 * torch.tanh(scale / 5)


def main() -> None:
    """Time the loss with its gradient."""
    settings = json.loads(sys.argv[1])
    batches, repeats, steps = (settings.pop(name) for name in ("batches", "repeats", "steps"))
    torch.set_num_threads(settings.pop("threads"))
    torch.manual_seed(0)
    network = ConvDRAW(**settings).to(memory_format=torch.channels_last)
    size, tiles = settings["size"], settings["tiles"]
    times = {}
    for batch in batches:
        last = lambda *shape: torch.rand(*shape).to(memory_format=torch.channels_last)
        level = functional.one_hot(torch.randint(tiles, (batch, size, size)), tiles).permute(0, 3, 1, 2).float()
        history = [last(batch, tiles + settings["actions"] + 2, size, size) for _ in range(steps + 1)]
        noise = [last(batch, settings["latents"], size, size) for _ in range(settings["num_layers"])]

        def backward(level=level, history=history, noise=noise):
            network.zero_grad()
            network(level.to(memory_format=torch.channels_last), history, noise).backward()

        times[str(batch)] = best_of(backward, repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": times, "peak_memory_mb": round(peak)}))


if __name__ == "__main__":
    main()
