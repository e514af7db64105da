"""A training run: built from settings, looped, saved and resumed."""
