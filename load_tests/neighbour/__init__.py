"""How much one user who sends the worst requests that are allowed slows the others."""
