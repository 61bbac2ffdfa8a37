"""Rows of a batch: from their bytes to what a handler gets, tensors back to bytes."""
