"""``modelserver serve``: one model in the foreground, from a script, a model file or anything registrable."""
