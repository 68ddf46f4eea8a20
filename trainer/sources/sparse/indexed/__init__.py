"""The grammar of libsvm's and libffm's lines."""
