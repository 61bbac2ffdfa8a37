"""What has happened to the server and its models: kept, listed and followed over the management API."""
