"""Tests made from documents, from failed cases and from traces, and a person's review of them."""
