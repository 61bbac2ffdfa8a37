"""English words: cut out of a text, and written out."""
