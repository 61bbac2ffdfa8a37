"""English words: splitting texts, expanding contractions."""
