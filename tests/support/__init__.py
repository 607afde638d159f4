"""What several tests share: a pool of ranks, plans of small models."""
