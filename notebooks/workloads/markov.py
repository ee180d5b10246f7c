"""A Markov text: its entropy rate is known, so the least perplexity that any model can reach is known too."""

from functools import cached_property

import numpy as np

from labkit.errors import RequestError

MOST_STATES = 1 << 18


class Chain:
    """A stationary Markov chain: after the last `order` tokens, one of `branching` tokens, at random.

    Which tokens follow, and how likely each is (drawn uniformly from the simplex), is fixed by `seed`.

    Attributes:
        successors: int64 [vocabulary ** order, branching], the tokens that may follow a state.
        probabilities: float64 of the same shape; rows sum to 1.
        stationary: float64 [vocabulary ** order], how often each state is visited in the long run.

    Raises:
        RequestError: an option that is no whole number in range, too many states, or a chain that falls apart."""

    def __init__(self, vocabulary: int = 64, order: int = 1, branching: int = 4, seed: int = 0):
        for name, value, least in (("vocabulary", vocabulary, 2), ("order", order, 1), ("branching", branching, 2),
                                   ("seed", seed, 0)):
            if type(value) is not int or value < least:
                raise RequestError(f"{name} of a Markov text must be a whole number, {least} or more, not {value!r}")
        self.vocabulary, self.order, self.seed, states = vocabulary, order, seed, vocabulary**order
        if branching > vocabulary or states > MOST_STATES:
            raise RequestError(f"a Markov text has at most as many branches as words, and at most {MOST_STATES} states "
                               f"(vocabulary ** order); asked for: {branching} of {vocabulary}, {states} states")
        rng = np.random.default_rng([seed, 0])
        self.successors = np.stack([rng.choice(vocabulary, branching, replace=False) for _ in range(states)])
        self.probabilities = rng.dirichlet(np.ones(branching), states)
        self._next = (np.arange(states)[:, None] * vocabulary + self.successors) % states
        self.stationary = self._stationary()

    @cached_property
    def entropy_rate(self) -> float:
        """Nats per token, exact up to rounding: its exponential is the least perplexity of any model."""
        return float(-(self.stationary * (self.probabilities * np.log(self.probabilities)).sum(1)).sum())

    def _stationary(self) -> np.ndarray:
        from scipy import sparse

        states, branching = self._next.shape
        rows = np.repeat(np.arange(states), branching)
        step = sparse.csr_array((self.probabilities.ravel(), (self._next.ravel(), rows)), shape=(states, states))
        count, label = sparse.csgraph.connected_components(step, directed=True, connection="strong")
        closed = set(range(count)) - set(label[rows][label[rows] != label[self._next.ravel()]].tolist())
        if len(closed) > 1:
            raise RequestError(f"this Markov chain falls into {len(closed)} parts that never meet; take another seed, "
                               "or more branches")
        share = np.full(states, 1.0 / states)
        for _ in range(100_000):
            # Half a step: the same limit, and no oscillation where the chain is periodic.
            moved = (share + step @ share) / 2
            if np.abs(moved - share).sum() < 1e-14:
                break
            share = moved
        return moved / moved.sum()

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """`count` tokens, int64, from a state drawn as often as the chain visits it."""
        bounds, next_state = np.cumsum(self.probabilities, axis=1)[:, :-1], self._next.tolist()
        state = int(rng.choice(len(bounds), p=self.stationary))
        picks, bounds, states = rng.random(count), bounds.tolist(), []
        for pick in picks.tolist():
            branch = 0
            for bound in bounds[state]:
                branch += pick >= bound
            state = next_state[state][branch]
            states.append(state)
        return np.array(states, dtype=np.int64) % self.vocabulary

    def nats(self, tokens: np.ndarray) -> np.ndarray:
        """-log of the true probability of each token after the first `order` ones; inf where it cannot follow."""
        state = np.zeros(len(tokens) - self.order, dtype=np.int64)
        for back in range(self.order):
            state = state * self.vocabulary + tokens[back:back + len(state)]
        hit = self.successors[state] == tokens[self.order:, None]
        with np.errstate(divide="ignore"):
            return -np.log((self.probabilities[state] * hit).sum(1))
