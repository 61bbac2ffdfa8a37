"""The tokens that a server requires: given by the operator or generated, stored, and renewed."""
