"""The sender as it was with lanes, pools of each and busy shards beside them: its twin."""
