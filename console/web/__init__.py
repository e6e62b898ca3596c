"""The web page: `kinesis-trident ui`. It needs the extra `ui`, and is imported only by that command."""
