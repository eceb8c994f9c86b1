"""Digits completed from a part: by the kernel of an infinitely wide hypernetwork, and by one."""
