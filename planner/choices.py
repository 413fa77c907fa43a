"""What a user chooses from by name; light, so that the command line can list it before anything heavy is loaded."""

from enum import StrEnum


class Objective(StrEnum):
    """What a layout is ranked by."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"


class Framework(StrEnum):
    """Who will run the plan: a constraint set on the search and the meaning of exported arguments."""

    MEGATRON = "megatron"
    BRIDGE = "bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    GALVATRON = "galvatron"
    NONE = "none"
