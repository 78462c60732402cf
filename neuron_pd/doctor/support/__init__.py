"""What `neuron-pd report` puts into its archive, without secrets."""
