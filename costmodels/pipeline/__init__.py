"""Pipeline schedules: who runs what in which order, how long a step takes, and what each stage holds."""
