"""Conversations to prompts, tokens to text, and where a text ends."""
