"""Where the profile of a machine holds: it is refused for other machines, and says what it leaves out."""

from collections.abc import Iterator
from typing import Final

from costmodels.job import Software
from hardware.cluster import Cluster, Island
from hardware.errors import InputError
from hardware.tiers import link_rates
from planner.profile import MachineProfile
from planner.request import PlanRequest
from planner.traits import family_of

FAR_LARGER: Final = 4.0
"""Times the accelerators of the largest run of a calibration beyond which a note says so."""
OTHER_RATE: Final = 1.5
"""Ratio of a link's rate to the nearest of a calibration beyond which it is another link: generations differ by 2."""
_BYTES_PER_GB: Final = 1e9


def check_profile(profile: MachineProfile, cluster: Cluster) -> None:
    """Refuse a profile for a cluster without the accelerator that it was fitted on.

    Raises
    ------
    InputError
        No island of the cluster has that accelerator.
    """
    parts = list(dict.fromkeys(island.node.accelerator.name for island in cluster.islands))
    if profile.accelerator not in parts:
        raise InputError(
            f"{profile.name} is the profile of {profile.accelerator}; {cluster.name} has {', '.join(parts)}",
            allowed=f"a cluster of {profile.accelerator}, or a profile that plan calibrate made on {parts[0]}",
            where="--profile",
        )


def other_framework(profile: MachineProfile, software: Software) -> str:
    """Say what of a profile does not hold under software of another family; empty where all of it holds."""
    if not profile.frameworks or family_of(software.framework) in profile.frameworks:
        return ""
    return (
        f"{profile.name} was fitted on runs of {', '.join(profile.frameworks)}: under {software.framework} its rates "
        "and links hold, its host times and memory do not"
    )


def profile_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say where the profile of a request does not hold, or was not tried.

    Parameters
    ----------
    request : PlanRequest
        With a profile or without one.

    Returns
    -------
    tuple of str
        Empty without a profile.
    """
    profile = request.profile
    if profile is None:
        return ()
    notes = [other_framework(profile, request.job.software)]
    others = {island.node.accelerator.name for island in request.cluster.islands} - {profile.accelerator}
    if others:
        notes.append(f"{profile.name} holds for {profile.accelerator} alone, not for {', '.join(sorted(others))}")
    largest = max((run.traits.gpus for run in profile.trusted), default=0.0)
    if largest and request.cluster.gpus > FAR_LARGER * largest:
        notes.append(f"{profile.name} was fitted on runs of up to {largest:,.0f} GPUs; this cluster is far larger")
    for island in request.cluster.islands:
        if island.node.accelerator.name == profile.accelerator:
            notes += _link_notes(profile, island)
    return tuple(note for note in notes if note)


def _link_notes(profile: MachineProfile, island: Island) -> Iterator[str]:
    """Say which links of an island are others than those that the profile was fitted on."""
    inside, between = link_rates(island)
    seen = [
        ("inside the fast domain", inside, [run.scale_up_bytes_per_s for run in profile.trusted]),
        ("between nodes", between, [run.network_bytes_per_s for run in profile.trusted]),
    ]
    for place, here, rates in seen:
        known = [rate for rate in rates if rate > 0.0]
        if not here or not known:
            continue
        nearest = min(known, key=lambda rate: max(rate / here, here / rate))
        if max(nearest / here, here / nearest) > OTHER_RATE:
            yield (
                f"{profile.name} was fitted on runs with {nearest / _BYTES_PER_GB:.3g} GB/s a GPU {place}; here it is "
                f"{here / _BYTES_PER_GB:.3g}: what it says of those links was not tried at that rate"
            )
    tried = any(run.network_bytes_per_s for run in profile.trusted) or "scale_out" in profile.learned
    if between and profile.trusted and not tried:
        yield f"{profile.name} was fitted on single nodes: what leaves a node is priced as published"
