"""The plan file and the search that writes it."""
