"""OpenAI's API: chat, completions, embeddings, reranking and scores, for all models that serve them."""
