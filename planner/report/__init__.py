"""What people and programs see of a plan: text, JSON, a page, a trace. Nothing is decided here."""
