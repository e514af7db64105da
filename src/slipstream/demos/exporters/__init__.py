"""Exporters: write a demos folder in the formats of other tools."""
