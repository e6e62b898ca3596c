"""The reader as it was with a flag for each fact of an answer: its twin."""
