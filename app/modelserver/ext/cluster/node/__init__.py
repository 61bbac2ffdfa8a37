"""What runs on the machines of a cluster: agents, and the workers that they start."""
