"""`ftrie bench serve`: recorded requests, replayed against a running server. `ftrie serve --record` makes them."""
