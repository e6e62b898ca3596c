"""The sink: writes a DataFrame to a stream."""
