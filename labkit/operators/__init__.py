"""The operators of a network: what each costs in work and depth, and the ways to compute a convolution."""
