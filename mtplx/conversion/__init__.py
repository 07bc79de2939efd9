"""Checkpoints of Hugging Face as MLX checkpoints that keep their MTP heads."""
