"""Workloads beside the images of the package, with their data, networks and Lightning modules: texts and translation. `labkit.workloads` finds the modules `workload_*` here."""
