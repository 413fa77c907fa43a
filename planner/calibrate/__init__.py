"""From a user's own measurements to the profile of their machine.

``observations`` turns runs, logs and tables into logarithms of predicted over measured; ``fit`` finds the factors;
``profile`` is what comes out, as a value and as a file; ``calibration`` joins them.
"""
