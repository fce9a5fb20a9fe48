"""dinnet: the network side of a distributed inference network."""

__version__ = "0.1.0"
