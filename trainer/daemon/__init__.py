"""`ftrie trainer`: read, join, learn, publish, all the time; and go on after any crash as if it had not been."""
