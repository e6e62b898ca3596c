"""Signed requests to Kinesis over kept connections, and their answers."""
