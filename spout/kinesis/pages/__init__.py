"""GetRecords answers and events of subscriptions, from text to Arrow."""
