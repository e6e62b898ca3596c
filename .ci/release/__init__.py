"""What `make release` does: builds the sdist and the wheel, and checks both as a user gets them."""
