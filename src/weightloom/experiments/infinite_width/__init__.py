"""On Infinite-Width Hypernetworks: every figure and the table, and what it could not reach."""
