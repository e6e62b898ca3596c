"""A night on call: queries in trouble, and what five ways to look at them say of it, and when."""
