"""From a role, an instance and a model to a command line (`serve`), and to supervised processes (`supervisor`)."""
