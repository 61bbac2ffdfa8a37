"""Who wants to know what becomes of requests over gRPC: the payload log, recordings, exact replays."""
