"""What listed, forgot, filled up and noted shards while it wrote: the twin of `take_in_listing` and `take_in_tips`."""
