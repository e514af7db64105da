"""Demonstrations on disk: format, reader, writer, quality checks, importers and exporters."""
