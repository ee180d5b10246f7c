"""Parallel training beyond one process group: the parameter server and its clients, Lightning strategies, loaders that
go on in the middle of an epoch, and counters of what torch's own parallelism sends. `labkit.training` gives out their
names."""
