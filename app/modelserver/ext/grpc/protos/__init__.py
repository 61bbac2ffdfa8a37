"""The protos of the services, and their descriptors."""
