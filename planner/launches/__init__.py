"""A user's own launch: checked, answered, and carried to another machine."""
