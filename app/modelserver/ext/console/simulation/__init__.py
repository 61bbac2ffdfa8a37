"""A server's queue, policies and workers on simulated time: what settings would do under given arrivals."""
