"""Models that are loaded for their first request, and parked when they are idle or others need the memory."""
