"""A translation network of LSTMs with attention, and the beam search that reads translations off it.

Shapes: b sentences, S units of the source, T units of the target, h hidden, V units of the vocabulary. Units below 4
are padding (0, at the end of a row only), unknown, begin and end."""

import torch
from torch import Tensor, nn

PAD, BEGIN, END = 0, 2, 3


class NormedAttention(nn.Module):
    """Additive attention (Bahdanau) whose vector v has a learnt length: score = g v/|v| . tanh(W q + U m + bias)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.of_query, self.of_memory = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.vector, self.bias = nn.Parameter(torch.empty(hidden)), nn.Parameter(torch.empty(hidden))
        self.length = nn.Parameter(torch.empty(()))

    def forward(self, query: Tensor, memory: Tensor, keys: Tensor, real: Tensor) -> Tensor:
        """query [b, T, h], memory [b, S, h], keys = of_memory(memory), real [b, S] -> mean of memory [b, T, h]."""
        hidden = torch.tanh((self.of_query(query) + self.bias).unsqueeze(2) + keys.unsqueeze(1))  # [b, T, S, h]
        scores = hidden @ (self.length * self.vector / self.vector.norm())
        return scores.masked_fill(~real.unsqueeze(1), -torch.inf).softmax(-1) @ memory


class GNMT(nn.Module):
    """Encoder and decoder of `layers` LSTM layers each; one embedding for both languages.

    The encoder's first layer reads both ways. The decoder's first layer asks the attention, whose answer every later
    layer reads beside its input. From the third layer on a layer adds its input to its output. Dropout stands before
    every LSTM layer; every weight starts uniform in +-init, and the decoder at state 0.
    Source: MLPerf Training's retired GNMT benchmark (gnmt_v2 attention): V = 32,000, h = 1024, 4 layers, init 0.1. At
    h = 64 that init learns ten times as slowly as 0.7 does.
    When not to use it: for good translation (a transformer is better), or for long sentences: attention holds
    b x T x S x h numbers.

    Args:
        vocabulary: V. layers: 2 or more."""

    def __init__(self, vocabulary: int, hidden: int = 64, layers: int = 2, dropout: float = 0.2, init: float = 0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.ahead, self.back = _lstm(hidden, hidden), _lstm(hidden, hidden)
        self.encoder = nn.ModuleList(_lstm((1 if i else 2) * hidden, hidden) for i in range(layers - 1))
        self.first, self.attention = _lstm(hidden, hidden), NormedAttention(hidden)
        self.decoder = nn.ModuleList(_lstm(2 * hidden, hidden) for _ in range(layers - 1))
        self.drop, self.classifier = nn.Dropout(dropout), nn.Linear(hidden, vocabulary)
        for name, weight in self.named_parameters():
            # torch's LSTM has two biases that only ever act as their sum
            nn.init.uniform_(weight, -init, init) if "bias_hh" not in name else nn.init.zeros_(weight)
        nn.init.constant_(self.attention.length, hidden**-0.5)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """source [b, S] -> memory [b, S, h], the attention's keys of it [b, S, h], where it is real [b, S].

        Padding changes nothing at a real place: a layer that reads ahead meets it last, and the one that reads back
        gets each sentence turned round inside its own length."""
        real = source != PAD
        x = self.drop(self.embedding(source))
        length, place = real.sum(1, keepdim=True), torch.arange(source.shape[1], device=source.device)
        turned = torch.where(place < length, length - 1 - place, place).unsqueeze(2).expand(-1, -1, x.shape[2])
        x = torch.cat([self.ahead(x)[0], self.back(x.gather(1, turned))[0].gather(1, turned)], 2)
        for depth, layer in enumerate(self.encoder):
            y = layer(self.drop(x))[0]
            x = x + y if depth else y
        return x, self.attention.of_memory(x), real

    def decode(self, inputs: Tensor, encoded: tuple, state: list | None = None) -> tuple[Tensor, list]:
        """inputs [b, T] after `state` (None: the start) -> logits of the next unit [b, T, V], the state after them."""
        state = state or [None] * (1 + len(self.decoder))
        x, after = self.first(self.drop(self.embedding(inputs)), state[0])
        context, states = self.attention(x, *encoded), [after]
        for depth, layer in enumerate(self.decoder):
            y, after = layer(self.drop(torch.cat([x, context], 2)), state[depth + 1])
            x = x + y if depth else y
            states.append(after)
        return self.classifier(x), states

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """source [b, S] and the target so far, `inputs` [b, T], from BEGIN on -> logits of the next unit [b, T, V]."""
        return self.decode(inputs, self.encode(source))[0]


def _lstm(inputs: int, hidden: int) -> nn.LSTM:
    return nn.LSTM(inputs, hidden, batch_first=True)


@torch.no_grad()
def translate(model: GNMT, source: Tensor, *, beam: int = 4, max_length: int = 50,
              length_penalty: float = 0.0) -> tuple[Tensor, Tensor]:
    """The best translation that a beam search finds for each sentence; a beam of 1 is greedy search.

    Args:
        model: in evaluation mode.
        source: [b, S].
        beam: hypotheses that are kept of each sentence; ended ones stay among them and compete.
        max_length: units of a translation, its END among them; one that is longer is cut there.
        length_penalty: a in score = log probability / ((5 + length) / 6)^a; 0 compares log probabilities.

    Returns: units [b, up to max_length] with PAD after END, and scores [b]."""
    sentences, device = len(source), source.device
    encoded = tuple(part.repeat_interleave(beam, 0) for part in model.encode(source))
    first = torch.arange(sentences, device=device).unsqueeze(1) * beam  # row of each sentence's first hypothesis
    units = torch.full((sentences * beam, 1), BEGIN, device=device)
    ended, length = (torch.zeros(sentences, beam, dtype=kind, device=device) for kind in (torch.bool, torch.long))
    total = torch.full((sentences, beam), -torch.inf, device=device)
    total[:, 0] = 0.0  # all hypotheses begin equal: the first one alone is gone on with
    state = None
    for _ in range(max_length):
        logits, state = model.decode(units[:, -1:], encoded, state)
        gain = logits[:, 0].float().log_softmax(1).view(sentences, beam, -1)
        gain[..., [PAD, BEGIN]] = -torch.inf
        gain = gain.masked_fill(ended.unsqueeze(2), -torch.inf)
        gain[..., PAD] = torch.where(ended, 0.0, gain[..., PAD])  # what has ended goes on with padding, at no cost
        length = length + ~ended
        candidates = total.unsqueeze(2) + gain
        ranked = candidates / (((5 + length) / 6) ** length_penalty).unsqueeze(2)
        scores, best = ranked.flatten(1).topk(beam)
        parent, unit = best // gain.shape[2], best % gain.shape[2]
        total, ended, length = candidates.flatten(1).gather(1, best), ended.gather(1, parent), length.gather(1, parent)
        ended = ended | (unit == END)
        rows = (first + parent).flatten()
        units = torch.cat([units[rows], unit.flatten().unsqueeze(1)], 1)
        state = [tuple(part[:, rows] for part in layer) for layer in state]
        if ended.all():
            break
    return units[::beam, 1:], scores[:, 0]
