"""`labkit sweep`: grids of recipes as data, trained here or on a Ray cluster."""
