"""The command line of kinesis-trident."""
