"""The translation network against its parts written out by hand, and the search against all translations there are."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import paths
from workloads.seq2seq import BEGIN, END, GNMT, PAD, NormedAttention, translate

EXACT = {"rtol": 0, "atol": 1e-12}


def network(vocabulary: int = 12, hidden: int = 6, layers: int = 3, seed: int = 0, **sizes) -> GNMT:
    torch.manual_seed(seed)
    return GNMT(vocabulary, hidden, layers, **{"dropout": 0.0, "init": 0.8, **sizes}).double().eval()


def sentences(*lengths: int, vocabulary: int = 12, first: int = 4) -> torch.Tensor:
    """Rows of random units of these lengths, with padding up to the longest."""
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(first, vocabulary, (length,))
    return rows


def cell(lstm: nn.LSTM, x, state, end=""):
    """One step of an LSTM from its equations: gates input, forget, candidate, output."""
    hidden, memory = state
    weight, back, bias, other = (getattr(lstm, f"{name}_l0{end}") for name in
                                 ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    i, f, g, o = (weight @ x + bias + back @ hidden + other).chunk(4)
    memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def run(lstm, xs):
    width = lstm.hidden_size
    state, outputs = (torch.zeros(width, dtype=torch.float64),) * 2, []
    for x in xs:
        state = cell(lstm, x, state)
        outputs.append(state[0])
    return outputs


def by_hand(model: GNMT, source: list[int], inputs: list[int]) -> torch.Tensor:
    """Logits [T, V] of one sentence without padding, step by step."""
    x = [model.embedding.weight[unit] for unit in source]
    back = run(model.back, x[::-1])[::-1]
    x = [torch.cat(both) for both in zip(run(model.ahead, x), back, strict=True)]
    for depth, layer in enumerate(model.encoder, start=2):
        y = run(layer, x)
        x = [a + b for a, b in zip(y, x, strict=True)] if depth >= 3 else y  # residual from the third layer on
    memory, attention = x, model.attention
    x = run(model.first, [model.embedding.weight[unit] for unit in inputs])
    unit_vector = attention.vector / attention.vector.pow(2).sum().sqrt()
    context = []
    for query in x:
        scores = torch.stack([
            attention.length * unit_vector @ torch.tanh(attention.of_query.weight @ query
                                                        + attention.of_memory.weight @ place + attention.bias)
            for place in memory])
        weights = scores.exp() / scores.exp().sum()
        context.append(sum(weight * place for weight, place in zip(weights, memory, strict=True)))
    for depth, layer in enumerate(model.decoder, start=2):
        y = run(layer, [torch.cat(both) for both in zip(x, context, strict=True)])
        x = [a + b for a, b in zip(y, x, strict=True)] if depth >= 3 else y
    return torch.stack([model.classifier.weight @ top + model.classifier.bias for top in x])


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_the_network_is_its_equations(layers):
    model = network(layers=layers)
    source, inputs = [4, 7, 5, 3], [BEGIN, 6, 9, 8, 11]
    with torch.no_grad():
        torch.testing.assert_close(model(torch.tensor([source]), torch.tensor([inputs]))[0],
                                   by_hand(model, source, inputs), **EXACT)


def test_the_first_layer_is_torchs_bidirectional_lstm_over_packed_sentences():
    torch.manual_seed(0)
    model = network(layers=2)
    model.encoder[0] = Echo()
    both = nn.LSTM(6, 6, bidirectional=True, batch_first=True).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        for lstm, end in ((model.ahead, ""), (model.back, "_reverse")):
            getattr(both, f"{name}_l0{end}").data = getattr(lstm, f"{name}_l0").data
    source = sentences(3, 8, 1, 5)
    packed = nn.utils.rnn.pack_padded_sequence(model.embedding(source), (source != PAD).sum(1), batch_first=True,
                                               enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)
    model.attention.of_memory = nn.Identity()
    found = model.encode(source)[0]
    real = source != PAD
    torch.testing.assert_close(found[real], expected[real], **EXACT)


class Echo(nn.Module):
    """A layer that gives back its input."""

    def forward(self, x):
        return x, None


def test_a_sentence_is_translated_the_same_alone_and_among_longer_ones():
    model = network(layers=4)
    source, inputs = sentences(2, 9, 5, 7), sentences(4, 3, 8, 1)
    together = model(source, inputs)
    for row in range(4):
        words, given = (side[row][side[row] != PAD].unsqueeze(0) for side in (source, inputs))
        torch.testing.assert_close(together[row, :given.shape[1]], model(words, given)[0], rtol=0, atol=1e-12)
    wider = F.pad(source, (0, 6))
    torch.testing.assert_close(model(wider, inputs), together, rtol=0, atol=1e-12)


def test_padding_gets_no_gradient():
    model = network(layers=3)
    source, target = sentences(2, 9, 5), sentences(8, 3, 6)
    logits = model(source, target[:, :-1]).flatten(0, 1)
    F.cross_entropy(logits, target[:, 1:].flatten(), ignore_index=PAD).backward()
    assert (model.embedding.weight.grad[PAD] == 0).all()
    assert all(part.grad.isfinite().all() for part in model.parameters())
    assert (model.embedding.weight.grad[4:].abs().sum(1) > 0).all()


def test_attention_weights_are_a_mean_over_real_places():
    torch.manual_seed(0)
    attention = NormedAttention(5).double()
    for weight in attention.parameters():
        nn.init.normal_(weight)
    memory, query = torch.randn(2, 4, 5).double(), torch.randn(2, 3, 5).double()
    real = torch.tensor([[True] * 4, [True, False, False, False]])
    answer = attention(query, memory, attention.of_memory(memory), real)
    assert answer.shape == (2, 3, 5)
    torch.testing.assert_close(answer[1], memory[1, :1].expand(3, 5), **EXACT)
    alike = memory[:, :1].expand(-1, 4, -1)
    torch.testing.assert_close(attention(query, alike, attention.of_memory(alike), real), alike[:, :3], **EXACT)
    with torch.no_grad():  # only the direction of the vector counts
        before = attention(query, memory, attention.of_memory(memory), real)
        attention.vector.mul_(7.5)
        torch.testing.assert_close(attention(query, memory, attention.of_memory(memory), real), before, **EXACT)


def test_a_later_unit_of_the_target_changes_nothing_before_it():
    model = network()
    source, inputs = sentences(5), sentences(6)
    other = inputs.clone()
    other[0, 4] = 4 if inputs[0, 4] != 4 else 5
    first, second = model(source, inputs), model(source, other)
    assert torch.equal(first[0, :4], second[0, :4]) and not torch.allclose(first[0, 4:], second[0, 4:])


def test_start_and_dropout():
    model = GNMT(30, 8, 2, dropout=0.5, init=0.1)
    for name, weight in model.named_parameters():
        if "bias_hh" in name:
            assert (weight == 0).all()
        elif name == "attention.length":
            assert weight.item() == pytest.approx(8**-0.5)
        else:
            assert 0.0 < weight.abs().max() <= 0.1
    source, inputs = sentences(5), sentences(6)
    assert not torch.equal(model(source, inputs), model(source, inputs))
    model.eval()
    assert torch.equal(model(source, inputs), model(source, inputs))


def parameters(v: int, h: int, layers: int) -> int:
    """Embedding and classifier; LSTM layers of 4 h (inputs + h + 2) each; attention."""
    encoder = 2 * 4 * h * (h + h + 2) + 4 * h * (3 * h + 2) + (layers - 2) * 4 * h * (2 * h + 2)
    decoder = 4 * h * (2 * h + 2) + (layers - 1) * 4 * h * (3 * h + 2)
    return v * h + v * h + v + encoder + decoder + 2 * h * h + 2 * h + 1


def test_parameter_counts_are_the_formulas():
    for v, h, layers in ((192, 64, 2), (50, 16, 5), (32_000, 1024, 4)):
        with torch.device("meta"):
            model = GNMT(v, h, layers)
        assert sum(weight.numel() for weight in model.parameters()) == parameters(v, h, layers)


# What the search promises. Vocabularies of 4 + 2 units: the three ends of a hypothesis are unit 4, unit 5 and END, and
# UNKNOWN (1) is a unit like any other.
CHOICES = (1, END, 4, 5)


def log_probability(model, source, units) -> float:
    logits = model(source, torch.tensor([[BEGIN, *units[:-1]]]))[0].log_softmax(1)
    return sum(float(row[unit]) for row, unit in zip(logits, units, strict=True))


def best_of_all(model, source, most: int, penalty: float):
    """Every translation of at most `most` units is scored; one that does not end fills all of them."""
    found = []
    for length in range(1, most + 1):
        for units in itertools.product(CHOICES, repeat=length):
            if END not in units[:-1] and (units[-1] == END or length == most):
                found.append((log_probability(model, source, units) / ((5 + length) / 6) ** penalty, units))
    return max(found)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_beam_wide_enough_for_all_finds_the_best_translation_there_is(seed, penalty):
    model, most = network(6, layers=2, seed=seed, init=2.0), 4
    source = sentences(3, 1, 2, vocabulary=6)
    units, scores = translate(model, source, beam=4**most, max_length=most, length_penalty=penalty)
    _, greedy = translate(model, source, beam=1, max_length=most, length_penalty=penalty)
    with torch.no_grad():
        for row, made, score, low in zip(source, units, scores, greedy, strict=True):
            alone = row[row != PAD].unsqueeze(0)
            value, expected = best_of_all(model, alone, most, penalty)
            assert score.item() == pytest.approx(value, abs=1e-5)
            assert tuple(made[: len(expected)].tolist()) == expected and (made[len(expected):] == PAD).all()
            assert score >= low - 1e-5


def talker() -> GNMT:
    """A network whose greedy translations of 12 random sentences have 6 to 10 units and more."""
    model = network(9, layers=4, seed=8, init=1.5)
    model.classifier.bias.data[END] += 2.0
    return model


def greedy(model, source, most: int) -> list[int]:
    """The likeliest unit, one after the other, everything computed anew for each."""
    units = []
    while len(units) < most and END not in units:
        scores = model(source, torch.tensor([[BEGIN, *units]]))[0, -1].clone()
        scores[[PAD, BEGIN]] = -math.inf
        units.append(int(scores.argmax()))
    return units


def test_a_beam_of_one_is_greedy_search_and_a_batch_changes_nothing():
    model = talker()
    source = sentences(*range(1, 13), vocabulary=9)
    units, scores = translate(model, source, beam=1, max_length=10)
    lengths = set()
    with torch.no_grad():
        for row, made, score in zip(source, units, scores, strict=True):
            alone = row[row != PAD].unsqueeze(0)
            expected = greedy(model, alone, 10)
            lengths.add(len(expected))
            assert made.tolist() == expected + [PAD] * (units.shape[1] - len(expected))
            assert score.item() == pytest.approx(log_probability(model, alone, expected), abs=1e-5)
    assert len(lengths) > 2 and 10 in lengths, "the translations of this test should differ in length"


@pytest.mark.parametrize("beam", [2, 3, 5])
def test_scores_of_a_beam_are_those_of_its_translations(beam):
    model = talker()
    source = sentences(*range(1, 13), vocabulary=9)
    units, scores = translate(model, source, beam=beam, max_length=8, length_penalty=0.6)
    assert len(set((units != PAD).sum(1).tolist())) > 1
    with torch.no_grad():
        for row, made, score in zip(source, units, scores, strict=True):
            alone, made = row[row != PAD].unsqueeze(0), made[made != PAD].tolist()
            expected = log_probability(model, alone, made) / ((5 + len(made)) / 6) ** 0.6
            assert score.item() == pytest.approx(expected, abs=1e-5)
            assert END not in made[:-1] and BEGIN not in made


def test_a_higher_length_penalty_gives_longer_translations():
    model = network(9, layers=2, seed=5, init=1.0)
    source = sentences(*[5] * 20, vocabulary=9)
    short, long = ((translate(model, source, beam=8, max_length=8, length_penalty=penalty)[0] != PAD).sum()
                   for penalty in (0.0, 3.0))
    assert long > short


FULL = """
import resource, torch
from torch.nn import functional as F
from workloads.seq2seq import GNMT
torch.manual_seed(0)
model = GNMT(32_000, 1024, 4)
source, target = torch.randint(4, 32_000, (2, 6)), torch.randint(4, 32_000, (2, 5))
def loss():
    return F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
def update(weight):  # plain SGD on each weight as soon as its gradient is there, which is then freed
    weight.data.add_(weight.grad, alpha=-0.5)
    weight.grad = None
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
model.eval()
first = loss()
first.backward()
with torch.no_grad():
    print(float(first), float(loss()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def test_full_gnmt_takes_a_real_step():
    """Four layers of 1024 and 32,000 units: one step lowers the loss, which begins at the one of a blind guess."""
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, cwd=paths.notebooks())
    before, after, _ = map(float, done.stdout.split() or [done.stderr])
    assert before == pytest.approx(math.log(32_000), abs=0.5) and after < before - 0.05
