"""What a server counts, and how it is read: `meter` counts, `totals` adds up processes, `exposition` speaks Prometheus.

`families` names every metric. A process that answers calls has one `Meter`; each second what it has counted since the
last time goes as JSON to the process that has the `Totals`, which is the only one that is scraped.
"""
