"""How a finished batch was settled before it was an event of `step`, and its shell: their twin."""
