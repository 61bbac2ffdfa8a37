"""The payload log: sends requests and responses as CloudEvents to the operator's sink."""
