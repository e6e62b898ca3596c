"""The acker as it was before `Sums`: its twin."""
