"""System metrics from the operator's own command."""
