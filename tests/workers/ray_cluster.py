"""A Ray cluster of two CPUs on this machine, as its own process: prints its address, ends with its standard input."""

import logging
import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

if __name__ == "__main__":
    context = ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=80_000_000,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()
