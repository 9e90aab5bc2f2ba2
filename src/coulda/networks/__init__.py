"""Building blocks of every network: written for one example, fast under `vmap` on any device."""

from coulda.networks.conv_lstm import ConvLSTM
from coulda.networks.convolution import convolve
from coulda.networks.layers import Convolution, Dense

__all__ = ["ConvLSTM", "Convolution", "Dense", "convolve"]
