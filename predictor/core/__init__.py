"""What every question needs: base, hardware, costs, timeline, schema, workload, step, report, predict."""
