"""The core: requests wait in a queue, and a policy decides when a batch of them is sent."""
