"""Decodes records that were written with a schema of AWS Glue Schema Registry."""
