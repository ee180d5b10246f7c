"""The exercises of each lab: `labNN.py` holds `EXERCISES`, a dictionary from the exercise's number to the exercise."""
