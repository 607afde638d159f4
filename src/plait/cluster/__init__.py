"""Sites, nodes, devices and links: described, looked up and probed."""
