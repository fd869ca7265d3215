"""A model that is divided over several machines: how they find and trust each other."""
