"""What makes a step fast on CPUs with AVX2 or newer; the portable path serves everywhere and is always right."""
