"""Finds the sentences that are nearest to a text: ``python search.py TEXT``."""

import sys
from pathlib import Path

import httpx
import numpy


def embed(texts: list[str]) -> numpy.ndarray:
    body = {"model": "search", "input": texts}
    answer = httpx.post("http://localhost:8080/v1/embeddings", json=body).raise_for_status().json()
    return numpy.array([each["embedding"] for each in answer["data"]])


sentences = Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines()
scores = embed(sentences) @ embed(sys.argv[1:2])[0]
for place in scores.argsort()[:-4:-1]:
    print(f"{scores[place]:.2f}  {sentences[place]}")
