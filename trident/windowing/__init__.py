"""Windows over a stream: which there are, and what a state keeps of them."""
