"""What the servers wrote: found, read as records, filtered."""
