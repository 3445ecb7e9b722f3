"""Partition values, their paths, and the split of Arrow tables by partition."""
