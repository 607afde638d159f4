"""Known schedules, one module each, named as in their papers."""
