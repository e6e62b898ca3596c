"""The planner that knew how it had planned, and made its calls while it did: the twin of `choose`."""
