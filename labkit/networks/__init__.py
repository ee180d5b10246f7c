"""Splitting a network over ranks: layers by channels (`tensor`), images by rows (`spatial`), the chain of layers into
stages (`pipeline`); what is sent for it, in closed form (`words`), and counted where torch sends it (`counting`)."""
