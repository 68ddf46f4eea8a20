"""Reading bytes as text and as decimal numbers, in kernels. Knows no format."""
