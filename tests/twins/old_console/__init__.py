"""The findings and figures of the console as they were told by functions, before they were tables: their twin."""
