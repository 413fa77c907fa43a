"""torchtitan's command line and configurations of its registry."""
