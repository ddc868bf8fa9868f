"""Tests generated from documents, failed cases and traces, and their review by a person."""
