"""The process: its command, start, listening, drain and stop."""
