"""Archives in object stores and on the Hugging Face hub: ``s3://``, ``gs://``, ``az://`` and ``hf://``."""
