"""The commands of `kinesis-trident`, by what they show or change."""
