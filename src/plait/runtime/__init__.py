"""Plans run on torch.distributed."""
