"""Workers that are forked from a process which has imported what they need."""
