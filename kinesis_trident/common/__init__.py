"""Code that every package may use, and that imports none of them."""
