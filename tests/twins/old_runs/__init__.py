"""What planner, bolts and Trident did with runs before `Runs` did it: its twin."""
