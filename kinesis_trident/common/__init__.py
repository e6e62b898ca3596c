"""What every package may use: it imports none of them."""
