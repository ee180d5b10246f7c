"""The asynchronous server of `labkit.simulate.events` once more, written in simpy: an oracle, and what speed is set
against."""

import itertools

import simpy


def run(workers, updates, compute, port=0.0, alpha=0.0, seed=0):
    """Rows (second applied, worker, version read)."""
    env, rows = simpy.Environment(), []
    ports = simpy.Resource(env), simpy.Resource(env)
    full = env.event()

    def transfer(resource):
        with resource.request() as turn:
            yield turn
            yield env.timeout(port)

    def worker(index):
        version = 0
        for seconds in itertools.chain.from_iterable(compute.blocks(index, seed, 256)):
            yield env.timeout(seconds)
            yield env.timeout(alpha)
            yield from transfer(ports[0])
            rows.append((env.now, index, version))
            version = len(rows)
            if version == updates:
                full.succeed()
            yield from transfer(ports[1])
            yield env.timeout(alpha)

    for index in range(workers):
        env.process(worker(index))
    env.run(full)
    return rows
