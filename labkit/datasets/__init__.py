"""Images, texts and pairs of sentences: bundled, generated or downloaded, and the batches that feed a model.

Importing them needs no torch, except `memory`, whose batches lie on the device."""
