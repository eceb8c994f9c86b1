"""Networks brought together: aligned to each other, averaged, and their statistics repaired."""
