"""What `benchmarks.peers` measures ftrie against: the same model in each rival's own form, behind a server each."""
