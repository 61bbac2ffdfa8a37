"""Tokens: where they come from and what they allow; requests from web pages (reference 16)."""
