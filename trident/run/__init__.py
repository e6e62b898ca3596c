"""The run of a topology: a batch is judged, then applied to the states."""
