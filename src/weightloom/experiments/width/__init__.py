"""004 chapters 2 and 3, measured: what width buys when networks are sampled, and when they move."""
