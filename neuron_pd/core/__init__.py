"""Protocol and decisions, standard library only: what both sides of the wire agree on."""
