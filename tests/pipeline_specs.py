"""Pipelines that hypothesis draws: every schedule, with micro-batches that leave some over in the last group too."""

from hypothesis import strategies as st

from costmodels.pipeline.schedules import PipelineSpec, Schedule


@st.composite
def specs(draw):
    schedule = draw(st.sampled_from(Schedule))
    pp = draw(st.integers(2 if schedule is Schedule.INTERLEAVED else 1, 6))
    if schedule is not Schedule.INTERLEAVED:
        m = draw(st.integers(1, 7 * pp + 9))
        return PipelineSpec(schedule=schedule, pp=pp, num_microbatches=m, vpp=schedule.fixed_vpp)
    group = draw(st.integers(pp, pp + 2))
    m = group * draw(st.integers(1, 8)) + draw(st.sampled_from([0, *range(pp, group)]))
    return PipelineSpec(schedule=schedule, pp=pp, num_microbatches=m, vpp=draw(st.integers(2, 3)), group_size=group)
