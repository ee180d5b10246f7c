"""An LSTM that reads an image row by row."""

from torch import Tensor, nn


class RowLSTM(nn.Module):
    """Linear projection of each row, one LSTM layer, and a linear classifier on the last step.

    Source: the MNIST application of You et al. (legw); at 28 x 28, 128 / 128 it has 137,098 parameters.
    When not to use it: as a good image classifier; the point is a recurrent network of 28 steps that is quick to train.

    Args:
        rows, columns: the image; each row is one step of the recurrence.
        projection: width of a projected row.
        hidden: width of the LSTM state.
        channels: a step reads the row of every channel."""

    def __init__(self, rows: int = 28, columns: int = 28, projection: int = 128, hidden: int = 128,
                 classes: int = 10, channels: int = 1):
        super().__init__()
        self.rows, self.width = rows, columns * channels
        self.projection = nn.Linear(self.width, projection)
        self.lstm = nn.LSTM(projection, hidden, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images [N, channels, rows, columns], or [N, rows, columns] of one channel -> scores [N, classes]."""
        if x.ndim == 4:
            x = x.transpose(1, 2)  # [N, rows, channels, columns]: a step sees all channels of its row
        steps, _ = self.lstm(self.projection(x.reshape(len(x), self.rows, self.width)))
        return self.classifier(steps[:, -1])
