"""Pipeline timelines: schedules order the slots of every stage, a replay times them."""
