"""The heart: requests wait in a queue, a policy says when a batch of them goes."""
