"""Keys that a rule sets apart from the others of their field or cross, by how their value begins."""
