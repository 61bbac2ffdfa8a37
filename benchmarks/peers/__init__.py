"""The servers that this one is compared with: how each is installed, started and asked."""
