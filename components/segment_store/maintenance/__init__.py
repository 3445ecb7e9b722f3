"""What keeps the log in shape: old segments go, small ones are merged, and objects that nothing is in are deleted."""
