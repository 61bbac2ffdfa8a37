"""What a server can do without: each folder is one extension."""
