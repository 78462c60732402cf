"""A discrete-event model of prefill and decode engines under many conversations, with the product's own decision."""
