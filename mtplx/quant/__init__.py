"""Weights in blocks: one row per format, and what the bits of a block stand for."""
