"""Reports as HTML or text."""
