"""Decoders of what AWS's services and other producers write into a stream; `kinesis_trident.decoders` has the names."""
