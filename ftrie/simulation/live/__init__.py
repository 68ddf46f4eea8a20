"""`ftrie live`: the whole loop as five real processes on one machine, started, watched and taken down."""
