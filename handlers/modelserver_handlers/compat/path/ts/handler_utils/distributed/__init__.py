"""Models over several processes."""
