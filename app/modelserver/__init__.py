"""A model server for PyTorch with batching built in and TorchServe's APIs."""

__version__ = "0.1.0"
