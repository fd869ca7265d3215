"""Models that do not let their attention be replaced: their own code attends, over our paged cache."""
