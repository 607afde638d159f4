"""Programs and prices in, a timeline out."""
