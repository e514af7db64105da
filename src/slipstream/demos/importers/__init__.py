"""Importers: read demonstrations recorded by other tools and write them as a demos folder."""
