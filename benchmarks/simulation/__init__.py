"""A simulated server: the real queue and policies, simulated clients, workers and time."""
