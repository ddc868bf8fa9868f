"""Assertions that ask a model: a judge, embeddings, a classifier, a moderator."""
