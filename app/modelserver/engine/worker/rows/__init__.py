"""Rows of a batch: decodes bytes to the handler's data, encodes tensors to bytes."""
