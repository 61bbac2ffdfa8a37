"""What would hold up the event loop, done in processes that can be ended."""
