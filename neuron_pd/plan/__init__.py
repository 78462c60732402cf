"""What reuse brings, before it is bought: planned times, calibrations, and a simulation."""
