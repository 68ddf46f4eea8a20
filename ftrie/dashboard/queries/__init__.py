"""What the pages show, without any drawing."""
