"""The parts of a manifest."""
