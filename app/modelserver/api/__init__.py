"""HTTP: parse, call, answer. Decisions are made elsewhere."""
