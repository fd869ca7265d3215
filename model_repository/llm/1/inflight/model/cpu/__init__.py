"""What makes a step fast on CPUs with AVX512_BF16; the portable path serves everywhere and is always right."""
