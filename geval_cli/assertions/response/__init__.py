"""Assertions about what came with the answer: time, cost, finish reason, probabilities."""
