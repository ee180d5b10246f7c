"""Workloads beside the images of the package: texts and translation, with data, networks and Lightning modules.

`labkit.workloads` finds the modules `workload_*` here."""
