"""Readers and writers of public formats: DAWNBench entries, MLPerf logs, and the commands `labkit tta ...` on them."""
