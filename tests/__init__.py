"""The tests, a package as some of its folders are, so that what their tests share ends with the last of them."""
