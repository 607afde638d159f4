"""A BranchGraph as a picture: repeated layers folded (fold), boxes placed (place), drawn as SVG (svg)."""
