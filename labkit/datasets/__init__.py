"""Image data: bundled, generated or downloaded, and the batches that feed a model.

`images` and `download` need numpy and pandas only; `memory` needs torch."""
