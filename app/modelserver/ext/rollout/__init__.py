"""Traffic between the versions of a model: weights, shadows, and the guard that moves weights."""
