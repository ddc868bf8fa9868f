"""Conversations with scripted or simulated users, and how realistic simulated users are."""
