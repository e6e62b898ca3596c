"""The command line that inspects it all."""
