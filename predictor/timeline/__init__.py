"""When each piece runs: schedules order the slots of every stage, one replay times them."""
