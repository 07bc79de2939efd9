"""Measuring: plain decoding, each draft depth and mlx-lm, side by side in one process."""
