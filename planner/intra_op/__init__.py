"""Intra-op level: which strategy each layer of a stage uses, under the memory limit of the heaviest rank.

``problem`` states the ILP as data, ``solve`` answers it. Equations, proofs and measured speed: ``docs/formulation.md``.
Nothing here knows a cost model; importing ``problem`` loads no solver.
"""
