"""What belongs to single labs: exercises (`labNN.py` holds `EXERCISES`) and the figures of their notebooks."""
