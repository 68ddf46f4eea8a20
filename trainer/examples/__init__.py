"""From log rows to hashed examples."""
