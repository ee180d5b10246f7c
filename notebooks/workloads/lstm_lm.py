"""An LSTM that predicts the next token."""

import torch
from torch import Tensor, nn


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers, and a linear layer to the scores of the next token; input and output are not tied.

    Source: the Penn Treebank configurations `small` (2 x 200) and `large` (2 x 1500) of the TensorFlow tutorial, whose
    perplexities You et al. (legw) take as their targets. One difference: torch's LSTM has two bias vectors a layer,
    which add up. When not to use it: for a good language model of today.

    Args:
        vocabulary: number of tokens.
        hidden: width of the embedding and of every layer.
        dropout: of the embedded tokens, between the layers and before the scores: 1 - `keep_prob` of the tutorial.
        init: every parameter starts uniformly between -init and init."""

    def __init__(self, vocabulary: int, hidden: int = 200, layers: int = 2, dropout: float = 0.0, init: float = 0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(hidden, vocabulary)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-init, init)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None):
        """Tokens [streams, window] and the state left by the window before (None: nothing was read yet) -> scores
        [streams, window, vocabulary] and the new state, two tensors [layers, streams, hidden]."""
        read, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return self.scores(self.dropout(read)), state
