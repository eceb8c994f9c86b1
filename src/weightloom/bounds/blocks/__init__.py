"""Networks that are not chains: residual sums, products, normalisation and attention."""
