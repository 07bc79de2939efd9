"""Finding out how deep to draft on this machine: what to try, measuring it, and what it shows."""
