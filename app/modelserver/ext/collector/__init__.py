"""System metrics: readings of the host, or the output of the operator's own command."""
