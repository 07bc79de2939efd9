"""From a path, hub id or alias to a loaded model: files, tensors, head, tokenizer."""
