"""The payload log: requests and answers as CloudEvents for a sink of the operator's."""
