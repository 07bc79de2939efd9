"""The terminal conversation: session, keys and commands, rendering."""
