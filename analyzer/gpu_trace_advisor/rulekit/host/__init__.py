"""What rules ask of the host: functions that run for long, waits that only measure, how its launches can be captured."""
