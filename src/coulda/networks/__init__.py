"""Building blocks of every network: written for one example, fast under `vmap` on any device."""

from coulda.networks.conv_lstm import ConvLSTM
from coulda.networks.convolution import convolve
from coulda.networks.layers import Convolution, Dense
from coulda.networks.recurrent import GRU
from coulda.networks.residual import ResidualTower

__all__ = ["GRU", "ConvLSTM", "Convolution", "Dense", "ResidualTower", "convolve"]
