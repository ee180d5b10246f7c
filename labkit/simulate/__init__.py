"""Parallel programs in virtual time, with numpy alone: traced ranks, closed-form costs, pipelines.

What is simulated is the order of events and their count; no processor, cache or network of this machine is."""
