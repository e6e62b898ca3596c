"""The executor's side of the source: fetches, pins and decodes the turns of a task."""
