"""The branch-aware search: in which order ranks work, so that branches fill each other's idle time."""
