"""What is wrong with a machine or a cluster, probe by probe, and the line that fixes each."""
