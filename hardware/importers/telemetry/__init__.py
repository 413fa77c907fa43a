"""Series of clocks, temperatures and draws as monitoring tools print them."""

from hardware.importers.telemetry.readings import DeviceReading, Telemetry, host_order, on_host, read_telemetry

__all__ = ["DeviceReading", "Telemetry", "host_order", "on_host", "read_telemetry"]
