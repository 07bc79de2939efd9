"""Files that ship with the package: the default model's head, prompts."""
