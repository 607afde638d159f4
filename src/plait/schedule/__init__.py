"""Actions, schedules, placements and programs: what is done where and in which order."""
