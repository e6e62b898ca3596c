"""Imported by Python at its start where this folder is on the path: driver, planning process and workers."""

import crash_points

crash_points.install()
