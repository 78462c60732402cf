"""What a proxy costs: requests a second on one core, next to other proxies, between engines that cost nothing."""
