"""Tensors of the Open Inference Protocol: their types, their bytes, and the requests that carry them."""
