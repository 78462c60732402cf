"""Who belongs to the pools: options, a file, DNS names, Kubernetes labels and admin calls, each saying who it knows."""
