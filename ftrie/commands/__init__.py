"""The `ftrie` subcommands, one group a file."""
