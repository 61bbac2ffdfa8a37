"""Handlers that speak OpenAI's API: chat, completions, embeddings, reranking and scores.

A handler of these answers a request whole: the server passes bodies on, and sends back what it gets. Only
inputs of embeddings and pairs of texts are split, so that those of several clients share a batch.
"""
