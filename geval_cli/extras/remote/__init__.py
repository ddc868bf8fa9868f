"""Tests from elsewhere: files on servers and in buckets, and data sets of Hugging Face."""
