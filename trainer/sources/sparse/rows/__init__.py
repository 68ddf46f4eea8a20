"""What lines of text are read into: tokens, rows, and notes of what could not be read. Knows no grammar."""
