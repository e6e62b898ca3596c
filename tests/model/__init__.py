"""A model of all that can happen to a query, played over the real planner, reader, settling and fencing."""
