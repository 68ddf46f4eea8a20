"""Making room."""
